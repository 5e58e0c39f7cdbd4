"""Under Bagua's name: what `pelton._training.algorithms.one_bit_adam` holds."""

from pelton._training.algorithms.one_bit_adam import *  # noqa: F403
