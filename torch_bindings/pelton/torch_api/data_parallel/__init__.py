"""Wrapping a model: the machinery behind `Module.with_bagua`, and the interface of torch's DistributedDataParallel."""

from pelton.torch_api.data_parallel import functional
from pelton.torch_api.data_parallel.bagua_distributed import BaguaDistributedDataParallel
from pelton.torch_api.data_parallel.distributed import DistributedDataParallel, DistributedDataParallel_V1_9_0

__all__ = [
    "BaguaDistributedDataParallel",
    "DistributedDataParallel",
    "DistributedDataParallel_V1_9_0",
    "functional",
]
