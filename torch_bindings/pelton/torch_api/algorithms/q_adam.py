"""Under Bagua's name: what `pelton._training.algorithms.q_adam` holds."""

from pelton._training.algorithms.q_adam import *  # noqa: F403
