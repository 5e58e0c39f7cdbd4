"""Under Bagua's name: what `pelton._training.data_parallel` holds."""

from pelton._training.data_parallel import *  # noqa: F403
