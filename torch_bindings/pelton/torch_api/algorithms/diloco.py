"""Under Bagua's name: what `pelton._training.algorithms.diloco` holds."""

from pelton._training.algorithms.diloco import *  # noqa: F403
