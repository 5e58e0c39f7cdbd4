"""Under Bagua's name: what `pelton._training.checkpoint` holds."""

from pelton._training.checkpoint import *  # noqa: F403
