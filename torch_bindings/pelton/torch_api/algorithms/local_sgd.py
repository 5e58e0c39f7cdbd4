"""Under Bagua's name: what `pelton._training.algorithms.local_sgd` holds."""

from pelton._training.algorithms.local_sgd import *  # noqa: F403
