"""Wrapping a model: the machinery behind `Module.with_bagua`, and the interface of torch's DistributedDataParallel."""

from pelton._training.data_parallel import functional
from pelton._training.data_parallel.bagua_distributed import BaguaDistributedDataParallel
from pelton._training.data_parallel.distributed import DistributedDataParallel, DistributedDataParallel_V1_9_0

__all__ = [
    "BaguaDistributedDataParallel",
    "DistributedDataParallel",
    "DistributedDataParallel_V1_9_0",
    "functional",
]
