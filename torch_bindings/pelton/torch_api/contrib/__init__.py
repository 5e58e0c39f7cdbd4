"""What goes with training beside communication: samplers and batch normalisation.

Nothing here is imported by `import pelton.torch_api`.
"""

from pelton.torch_api.contrib.load_balancing_data_loader import (
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)
from pelton.torch_api.contrib.sync_batchnorm import SyncBatchNorm

__all__ = [
    "LoadBalancingDistributedBatchSampler",
    "LoadBalancingDistributedSampler",
    "SyncBatchNorm",
]
