"""PyTorch's own doors to Pelton.

Importing `pelton` registers a backend for CPU tensors: after `torch.distributed.init_process_group("pelton")`, or
`"cpu:pelton"`, everything that stands on `torch.distributed` runs over Pelton. `Store` is a store of
`torch.distributed` on the job's coordinator; `comm_hooks` holds hooks for `DistributedDataParallel`.
"""

from pelton.distributed import comm_hooks
from pelton.distributed._store import Store

__all__ = ["Store", "comm_hooks"]
