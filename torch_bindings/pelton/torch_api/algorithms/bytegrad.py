"""Under Bagua's name: what `pelton._training.algorithms.bytegrad` holds."""

from pelton._training.algorithms.bytegrad import *  # noqa: F403
