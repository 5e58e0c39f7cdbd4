"""Under Bagua's name: what `pelton._training.data_parallel.distributed` holds."""

from pelton._training.data_parallel.distributed import *  # noqa: F403
