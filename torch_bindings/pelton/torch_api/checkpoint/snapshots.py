"""Under Bagua's name: what `pelton._training.checkpoint.snapshots` holds."""

from pelton._training.checkpoint.snapshots import *  # noqa: F403
