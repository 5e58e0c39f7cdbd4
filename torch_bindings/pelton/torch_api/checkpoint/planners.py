"""Under Bagua's name: what `pelton._training.checkpoint.planners` holds."""

from pelton._training.checkpoint.planners import *  # noqa: F403
