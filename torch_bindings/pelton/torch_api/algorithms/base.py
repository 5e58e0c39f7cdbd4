"""Under Bagua's name: what `pelton._training.algorithms.base` holds."""

from pelton._training.algorithms.base import *  # noqa: F403
