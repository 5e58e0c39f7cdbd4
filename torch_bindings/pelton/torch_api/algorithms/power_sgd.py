"""Under Bagua's name: what `pelton._training.algorithms.power_sgd` holds."""

from pelton._training.algorithms.power_sgd import *  # noqa: F403
