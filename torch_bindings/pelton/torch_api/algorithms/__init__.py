"""Under Bagua's name: what `pelton._training.algorithms` holds."""

from pelton._training.algorithms import *  # noqa: F403
