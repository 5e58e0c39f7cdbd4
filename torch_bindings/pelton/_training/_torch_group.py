"""torch.distributed beside Pelton's own groups.

Samplers, metrics, SyncBatchNorm, loggers and datasets ask torch.distributed how many processes there are, and take one
where nobody has initialised it. So joining a job initialises it too, on the same backend object: no second meeting, no
second coordinator, and on the CPU the same arithmetic.
"""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # exported on a condition

from pelton import _C


def place_from_torch() -> Store | None:
    """Where torch.distributed was initialised, and the environment has no numbers: its store, with its numbers written
    to RANK and WORLD_SIZE. Else None.
    """
    if not _is_initialized() or "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        return None
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(dist.get_rank()), str(dist.get_world_size())
    store: Store = dist.distributed_c10d._get_default_store()
    return store


def make(backend: _C.Backend, timeout_s: float) -> dist.ProcessGroup | None:
    """Initialises torch.distributed on a backend of the current session, unless it is already.

    Returns:
      The default group that it made; None if there was one.
    """
    if not dist.is_available() or dist.is_initialized():
        return None
    dist.init_process_group(
        _backend_names(),
        store=_C.Store(backend, timeout_s),
        rank=backend.rank,
        world_size=backend.world_size,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    return dist.group.WORLD


def unmake(group: dist.ProcessGroup | None) -> None:
    """Ends what `make` has made, unless the user has ended it, and all groups beside it."""
    if group is not None and _is_initialized() and dist.group.WORLD is group:
        dist.destroy_process_group()


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _backend_names() -> str:
    """Pelton's for what it carries itself. Asking for the number of GPUs leaves a process free to fork."""
    has_gpus = torch.cuda.device_count() > 0 and dist.is_nccl_available()
    return "cpu:pelton,cuda:nccl" if has_gpus else "pelton"
