"""Under Bagua's name: what `pelton._training.algorithms.zero_one_adam` holds."""

from pelton._training.algorithms.zero_one_adam import *  # noqa: F403
