"""Under Bagua's name: what `pelton._training.tensor` holds."""

from pelton._training.tensor import *  # noqa: F403
from pelton._training.tensor import _nothing as _nothing  # pickles of registered tensors name it here
