"""Under Bagua's name: what `pelton._training.data_parallel.functional` holds."""

from pelton._training.data_parallel.functional import *  # noqa: F403
