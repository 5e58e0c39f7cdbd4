"""Under Bagua's name: what `pelton._training.data_parallel.bagua_distributed` holds."""

from pelton._training.data_parallel.bagua_distributed import *  # noqa: F403
