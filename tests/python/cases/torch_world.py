"""What the cases of torch.distributed share: worlds of the backend "pelton", and gloo to compare with."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pelton.distributed
import pelton.torch_api as bagua
import torch.distributed as dist

_numbers = itertools.count()


@contextlib.contextmanager
def torch_world(backend: str = "pelton") -> Iterator[None]:
    """torch.distributed is initialised within it, through Pelton's own store, each time under keys of its own: gloo
    would find the addresses that an earlier group of its has left there.
    """
    store = dist.PrefixStore(f"world {next(_numbers)}", pelton.distributed.Store())  # type: ignore[attr-defined]  # exported on a condition
    dist.init_process_group(backend, store=store, rank=bagua.get_rank(), world_size=bagua.get_world_size())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def as_joining_leaves_it() -> Iterator[None]:
    """torch.distributed is within it what `init_process_group` makes of it: in a session of its own, and after it comes
    another one without.
    """
    bagua.destroy_process_group()
    bagua.init_process_group()
    try:
        yield
    finally:
        bagua.destroy_process_group()
        bagua.init_process_group(torch_distributed=False)


# The end of a group of gloo's waits for its thread with the interpreter's lock in hand, and that thread takes the lock
# where it lets go of its last works, a moment after they are done: a group that nobody keeps may hang.
_kept: list[dist.ProcessGroup] = []


@contextlib.contextmanager
def beside_gloo() -> Iterator[dist.ProcessGroup]:
    """The same; yields a group of gloo's with all ranks."""
    with torch_world():
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        _kept.append(group)
        yield group
