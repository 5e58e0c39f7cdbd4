"""Under Bagua's name: what `pelton._training.tensor` holds."""

from pelton._training.tensor import *  # noqa: F403
