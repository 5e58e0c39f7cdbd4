"""What goes with training beside communication: samplers, batch normalisation, fused optimizers, caches.

None of the packages that the caches need is imported before one is made.
"""

from pelton.torch_api.contrib.cache_loader import CacheLoader
from pelton.torch_api.contrib.cached_dataset import CachedDataset
from pelton.torch_api.contrib.fuse.optimizer import fuse_optimizer
from pelton.torch_api.contrib.load_balancing_data_loader import (
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)
from pelton.torch_api.contrib.sync_batchnorm import SyncBatchNorm

__all__ = [
    "CacheLoader",
    "CachedDataset",
    "LoadBalancingDistributedBatchSampler",
    "LoadBalancingDistributedSampler",
    "SyncBatchNorm",
    "fuse_optimizer",
]
