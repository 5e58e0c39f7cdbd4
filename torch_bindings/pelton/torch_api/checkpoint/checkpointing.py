"""Under Bagua's name: what `pelton._training.checkpoint.checkpointing` holds."""

from pelton._training.checkpoint.checkpointing import *  # noqa: F403
