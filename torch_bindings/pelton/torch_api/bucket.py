"""Under Bagua's name: what `pelton._training.bucket` holds."""

from pelton._training.bucket import *  # noqa: F403
