"""What the cases of torch.distributed share: worlds of the backend "pelton", and gloo to compare with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pelton.distributed
import pelton.torch_api as bagua
import torch.distributed as dist


@contextlib.contextmanager
def torch_world(backend: str = "pelton") -> Iterator[None]:
    """torch.distributed is initialised within it, through Pelton's own store."""
    dist.init_process_group(
        backend, store=pelton.distributed.Store(), rank=bagua.get_rank(), world_size=bagua.get_world_size()
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def beside_gloo() -> Iterator[dist.ProcessGroup]:
    """The same; yields a group of gloo's with all ranks."""
    with torch_world():
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        yield group
