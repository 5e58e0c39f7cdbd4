"""The machinery behind `Module.with_bagua`."""

from pelton.torch_api.data_parallel.bagua_distributed import BaguaDistributedDataParallel

__all__ = ["BaguaDistributedDataParallel"]
