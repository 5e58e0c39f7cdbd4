"""Makes Pelton's backend for the process groups of torch.distributed.

The groups of a job share one Pelton backend: the one that `pelton.torch_api.init_process_group` has made, or else one
that the default group makes, whose ranks meet through that group's own store. A group beside a default group of
another backend (gloo, say) gets a Pelton backend for its members alone.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
from typing import Any

import torch.distributed as dist

from pelton import _C
from pelton._training import _fork, _rendezvous, _session, env
from pelton.errors import FailedPrecondition, InvalidArgument, PeltonError

_STOP_TIMEOUT_S = 10.0
_EXIT_TIMEOUT_S = 3.0


class _World:
    """A joined job and the process groups on it.

    Threads: any, with Python's lock. Owns: its groups; backend and coordinator too, if it has a meeting place.
    """

    def __init__(self, backend: _C.Backend, place: _rendezvous.MeetingPlace | None) -> None:
        self.backend = backend
        self._place = place
        self._groups: dict[int, Any] = {}

    def open(self, name: str, ranks: list[int], timeout_s: float, backend_name: str) -> Any:
        """Opens a group. Collective over its ranks."""
        key = next(_keys)
        self._groups[key] = None
        try:
            on_closed = functools.partial(self._forget, key)
            self._groups[key] = _C.process_group(self.backend, ranks, name, backend_name, timeout_s, on_closed)
        except BaseException:
            self._forget(key)
            raise
        return self._groups[key]

    def close(self) -> None:
        """Closes its groups, which ends it."""
        for group in list(self._groups.values()):
            if group is not None:
                group.shutdown()

    def _forget(self, key: int) -> None:
        """The last group that goes ends what the world owns."""
        global _default
        if self._groups.pop(key, self) is self or self._groups:
            return
        _worlds.remove(self)
        if _default is self:  # the next group of its members begins anew, and the backend's memory is let go
            _default = None
        if self._place is None:
            return
        try:
            self.backend.stop(_timeout_s)
        finally:
            if self._place.coordinator is not None:
                self._place.coordinator.stop(_timeout_s)


_keys = itertools.count()
_worlds: list[_World] = []
_default: _World | None = None  # what sub-groups of the default group are opened on
_timeout_s = _STOP_TIMEOUT_S


def create(group: Any, options: Any, backend_name: str = "pelton") -> Any:
    """The backend of one process group; torch.distributed calls it on every member.

    Args:
      group: torch's `_DistributedBackendOptions`: store, ranks, timeout.
      options: there are none.
      backend_name: what the backend calls itself, in PyTorch's logs and profiles too.

    Raises:
      InvalidArgument: options were given.
      FailedPrecondition: `pelton.torch_api` has other ranks.
      DeadlineExceeded, PeerLost: not all members came.
    """
    if options is not None:
        raise InvalidArgument(f"pg_options={options!r}: the backend 'pelton' has no options")
    _fork.check()
    _C.set_stall_seconds(env.stall_s())
    world, ranks = _place_of(group)
    if world not in _worlds:
        _worlds.append(world)
    return world.open(group.group_id, ranks, group.timeout.total_seconds(), backend_name)


def _place_of(group: Any) -> tuple[_World, list[int]]:
    """The world that a group belongs to, and its members' ranks there."""
    global _default
    everybody = list(range(group.group_size))
    if not group.global_ranks_in_group:  # the default group
        is_joined = _session.is_initialized()
        _default = _borrowed(group.group_rank, group.group_size) if is_joined else _joined(group)
        return _default, everybody
    members = list(group.global_ranks_in_group)
    if _default is not None:
        return _default, members
    if not _session.is_initialized():
        return _joined(group), everybody
    _default = _borrowed(dist.get_rank(), dist.get_world_size())
    return _default, members


def _borrowed(rank: int, world_size: int) -> _World:
    """The world of `pelton.torch_api`'s process group.

    Raises:
      FailedPrecondition: it is another place in another world.
    """
    backend = _session.current().backend
    if (backend.rank, backend.world_size) == (rank, world_size):
        return _World(backend, None)
    raise FailedPrecondition(
        f"torch.distributed says rank {rank} of {world_size}, "
        f"pelton.torch_api.init_process_group rank {backend.rank} of {backend.world_size}"
    )


def _joined(group: Any) -> _World:
    """A world of the group's members, who meet through its store."""
    rank, size, timeout_s = group.group_rank, group.group_size, group.timeout.total_seconds()
    place = _rendezvous.through_store(group.store, rank, size, env.join_timeout_s())
    return _World(_rendezvous.join(place, rank, size, timeout_s), place)


def _forget_in_child() -> None:
    global _default
    _worlds.clear()
    _default = None


_fork.forget_in_child(_forget_in_child)


def _at_exit() -> None:
    global _timeout_s
    _timeout_s = _EXIT_TIMEOUT_S
    for world in list(_worlds):
        with contextlib.suppress(PeltonError):  # the process ends anyway, and what went wrong was raised before
            world.close()


atexit.register(_at_exit)  # after that of _session: groups go before the backend that they borrow
