"""The process's place in its job: what `init_process_group` makes and `destroy_process_group` ends."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from pelton_run.variables import name_in_force
from torch.distributed import ProcessGroup, Store  # type: ignore[attr-defined]  # exported on a condition

from pelton import _C
from pelton._training import _before_writes, _fork, _launchers, _rendezvous, _sight, _torch_group, env
from pelton._training._dropped import DroppedModels
from pelton._training._report import Report
from pelton._warn import warn
from pelton.errors import FailedPrecondition, InvalidArgument, PeltonError, RepeatedInitializationError

_STOP_TIMEOUT_S = 10.0
_EXIT_TIMEOUT_S = 3.0
_MOST_RANKS = 1 << 16


class _Detachable(Protocol):
    module: Any
    process_group: Any
    bagua_module_name: str
    _rounds: Any
    _selected: Any

    def detach(self, reason: str = ..., timeout_s: float = ..., *, keeps_watch: bool = ...) -> None: ...


class Closable(Protocol):
    def close(self) -> None: ...


_Key = tuple[str, str, tuple[int, ...]]  # group, kind, ranks


class Session:
    """A joined job.

    Threads: the main thread makes and ends it. Owns: the backend, its communicators, the store, and torch's default
    group if it has made that.
    """

    def __init__(self, backend: _C.Backend, place: _rendezvous.MeetingPlace, timeout_s: float) -> None:
        self.backend = backend
        self.timeout_s = timeout_s
        self.groups: dict[str, Any] = {}  # by name
        self.group_count = 0  # of new_group's calls
        self.world_communicator = backend.communicator(range(backend.world_size), "default")
        self.hosts = backend.host_of()
        self.torch_group: ProcessGroup | None = None
        self._report = Report(backend.rank, self.hosts)
        self._place = place
        self._communicators: dict[_Key, _C.Communicator] = {}
        # In the order of wrapping, the same on all ranks: an averaging beside training ends by agreement.
        self._models: weakref.WeakKeyDictionary[_Detachable, None] = weakref.WeakKeyDictionary()
        self.dropped = DroppedModels()
        self._queues: list[Closable] = []
        self.has_daemon = place.address.startswith(_rendezvous.DAEMON)
        self._sight = _sight.Sight(backend, place.address)

    def close_at_end(self, queue: Closable) -> None:
        """Has what uses the backend closed before that stops. Closing it earlier does no harm."""
        self._queues.append(queue)

    def communicator(self, group_name: str, kind: str, ranks: Sequence[int]) -> _C.Communicator:
        """A group's communicator for user calls, opened at its first use; collective over `ranks` then."""
        key = (group_name, kind, tuple(ranks))
        if key not in self._communicators:
            self._communicators[key] = self.backend.communicator(key[2], group_name)
        return self._communicators[key]

    def destroy_group(self, group_name: str) -> None:
        """Detaches the models of a group and closes its communicators. Idempotent."""
        for model in self.models():
            if model.process_group.group_name == group_name:
                model.detach(f"its group '{group_name}' was destroyed", keeps_watch=True)
        for key in [key for key in self._communicators if key[0] == group_name]:
            self._communicators.pop(key).close()
        self.groups.pop(group_name, None)

    def add_model(self, model: _Detachable) -> None:
        """Remembers a wrapped model, which must let go of the backend before that ends."""
        self._report.add_model(model)
        self._models[model] = None

    def models(self) -> list[_Detachable]:
        """The wrapped models that are still there, in the order in which they were wrapped."""
        return list(self._models)

    def communicated_by_others(self, this: Any) -> Iterator[tuple[_Detachable, str, torch.Tensor]]:
        """What wrapped models besides this one communicate now: each one's object, and its tensors by name."""
        for model in self.models():
            if model is not this and model._rounds is not None:
                yield from ((model, name, tensor) for name, tensor in model._selected.trainable)

    def end(self, timeout_s: float) -> None:
        """Leaves the job. Idempotent. Blocks: until `timeout_s`, rank 0 for the other ranks' leaving too.

        Raises:
          PeltonError: the other ranks were not told in good order.
        """
        with contextlib.suppress(PeltonError):  # a daemon that is gone is told nothing; the snapshot counts
            _before_writes.settle()
        self._report.end(self.models())
        for model in self.models():
            model.detach("the process group was destroyed", timeout_s, keeps_watch=True)
        self.dropped.end(timeout_s)
        _torch_group.unmake(self.torch_group)
        self._sight.close()
        for queue in self._queues:
            queue.close()
        self._queues.clear()
        for communicator in [self.world_communicator, *self._communicators.values()]:
            communicator.close()
        self._communicators.clear()
        try:
            self.backend.stop(timeout_s)
        finally:
            coordinator = self._place.coordinator
            if coordinator is not None and not _rendezvous.is_kept(coordinator):
                coordinator.stop(timeout_s)


_session: Session | None = None
_joined_count = 0  # jobs so far


def is_initialized() -> bool:
    """Whether `init_process_group` was called, and not ended since."""
    return _session is not None


def current() -> Session:
    """The process's session.

    Raises:
      FailedPrecondition: there is none.
    """
    _fork.check()
    if _session is None:
        raise FailedPrecondition(
            "the process group is not initialised; call pelton.init(), or pelton.torch_api.init_process_group(), first"
        )
    return _session


def init_process_group(
    store: Store | None = None,
    rank: int = -1,
    world_size: int = -1,
    local_world_size: int = -1,
    *,
    timeout: float | datetime.timedelta | None = None,
    join_timeout: float | datetime.timedelta | None = None,
    torch_distributed: bool | None = None,
) -> None:
    """Joins the job and makes the default group of all its ranks, and torch.distributed's. Collective.

    Without a store the ranks meet where `pelton run`, torchrun or the variables MASTER_ADDR and MASTER_PORT say; SLURM,
    Open MPI, MVAPICH and PMI are understood (`env`). One process without any of them is a world of one rank, or has the
    place that torch.distributed gives it if that was initialised before.

    Args:
      store: a torch store that all ranks share, used once to exchange the coordinator's address; the three numbers
        are needed with it, and are written to RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.
      rank: this process's number.
      world_size: number of ranks.
      local_world_size: number of ranks on this node.
      timeout: of each later operation; PELTON_TIMEOUT if None. Units: seconds.
      join_timeout: until all ranks have joined; PELTON_JOIN_TIMEOUT if None. Units: seconds.
      torch_distributed: whether torch.distributed is initialised too where it is not yet, with the backend "pelton" for
        the CPU and NCCL for GPUs, until `destroy_process_group`; PELTON_TORCH_DISTRIBUTED, by default yes, if None.

    Raises:
      RepeatedInitializationError: called twice.
      InvalidArgument: an argument or variable is wrong, or differs from what another rank says.
      DeadlineExceeded: ranks are missing; the text names them.
      FailedPrecondition: the job's token would have to cross a network in clear; the text says what to do.
    """
    global _session, _joined_count
    _fork.check()
    if _session is not None:
        raise RepeatedInitializationError(
            "init_process_group was called already, and not ended by destroy_process_group"
        )
    timeout_s = _seconds("timeout", timeout, env.operation_timeout_s)
    join_timeout_s = _seconds("join_timeout", join_timeout, env.join_timeout_s)
    makes_torch_group = env.makes_torch_group() if torch_distributed is None else torch_distributed
    if store is not None:
        _write_environment(rank, world_size, local_world_size)
    else:
        store = _torch_group.place_from_torch()
    _launchers.adopt()
    rank, world_size = _checked_rank(env.get_rank(), env.get_world_size())
    _C.set_stall_seconds(env.stall_s())
    place = _meeting_place(store, rank, world_size, join_timeout_s)
    backend = _rendezvous.join(place, rank, world_size, timeout_s, join_timeout_s)
    _joined_count += 1  # here on all ranks or on none, so that after a failure they still agree
    if backend.host_warning:
        warn(backend.host_warning, RuntimeWarning)
    _session = Session(backend, place, timeout_s)
    if rank == 0 and env.is_report_metrics_switch_on():
        _tell_what_is_ignored()
    if makes_torch_group:
        _make_torch_group(_session)


def make_torch_group() -> None:
    """Initialises torch.distributed on the session's backend, unless it is. Collective.

    For what asks torch.distributed, not Pelton, for the other ranks, and would go on alone where that is not
    initialised: PELTON_TORCH_DISTRIBUTED is 0, or the user has ended it since.
    """
    session = current()
    session.torch_group = _torch_group.make(session.backend, session.timeout_s) or session.torch_group


def _make_torch_group(session: Session) -> None:
    """Initialises torch.distributed; where that fails the job is left, so that the user may try again."""
    try:
        session.torch_group = _torch_group.make(session.backend, session.timeout_s)
    except BaseException:
        with contextlib.suppress(PeltonError):
            destroy()
        raise


@functools.cache
def _tell_what_is_ignored() -> None:
    """Says once a process that one of Bagua's variables has no effect."""
    name = name_in_force("BAGUA_REPORT_METRICS")
    warn(f"{name} is set in the environment, but has no effect in Pelton", RuntimeWarning)


def destroy() -> None:
    """Leaves the job: wrapped models become plain ones again, every resource is freed. Idempotent.

    Raises:
      PeltonError: the other ranks were not told in good order.
    """
    global _session
    session, _session = _session, None
    if session is not None:
        session.end(_STOP_TIMEOUT_S)


def _meeting_place(store: Store | None, rank: int, world_size: int, join_timeout_s: float) -> _rendezvous.MeetingPlace:
    if store is not None:
        return _rendezvous.through_store(store, rank, world_size, join_timeout_s)
    place = _rendezvous.from_launcher(rank, _joined_count)
    if place is not None:
        return place
    if world_size == 1:
        return _rendezvous.alone()
    return _rendezvous.from_environment(rank, world_size, join_timeout_s)


def _seconds(name: str, value: float | datetime.timedelta | None, default: Callable[[], float]) -> float:
    if value is None:
        return default()
    seconds = value.total_seconds() if isinstance(value, datetime.timedelta) else float(value)
    if not 0 < seconds < float("inf"):
        raise InvalidArgument(f"{name}={value!r}: must be positive and finite")
    return seconds


def _checked_rank(rank: int, world_size: int) -> tuple[int, int]:
    if not 1 <= world_size <= _MOST_RANKS:
        raise InvalidArgument(f"world_size={world_size}: must be between 1 and {_MOST_RANKS}")
    if not 0 <= rank < world_size:
        raise InvalidArgument(f"rank={rank}: must be between 0 and {world_size - 1} (world_size={world_size})")
    return rank, world_size


def _write_environment(rank: int, world_size: int, local_world_size: int) -> None:
    """What a launcher would have set, for the `env` functions and for other libraries."""
    _checked_rank(rank, world_size)
    if not 1 <= local_world_size <= world_size:
        raise InvalidArgument(f"local_world_size={local_world_size}: must be between 1 and {world_size}")
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(world_size)
    os.environ["LOCAL_RANK"] = str(rank % local_world_size)
    os.environ["LOCAL_WORLD_SIZE"] = str(local_world_size)


def _forget_in_child() -> None:
    global _session
    _session = None


_fork.forget_in_child(_forget_in_child)


def _at_exit() -> None:
    global _session
    session, _session = _session, None
    with contextlib.suppress(PeltonError):  # the process ends anyway, and what went wrong was raised before
        if session is not None:
            session.end(_EXIT_TIMEOUT_S)
    with contextlib.suppress(PeltonError):
        _rendezvous.stop_kept_coordinators(_EXIT_TIMEOUT_S)


atexit.register(_at_exit)
