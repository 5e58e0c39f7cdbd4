"""Under Bagua's name: what `pelton._training.env` holds."""

from pelton._training.env import *  # noqa: F403
