"""Under Bagua's name: what `pelton._training.communication` holds."""

from pelton._training.communication import *  # noqa: F403
