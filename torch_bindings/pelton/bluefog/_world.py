"""The process's place among the ranks, its topologies and its queues: what `init` makes and `shutdown` ends."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Sequence

import torch

from pelton import _C, _log
from pelton._training import _fork, _session
from pelton._training._session import Session
from pelton.bluefog import _topology, _variables
from pelton.bluefog._errors import NotInitialized, waits_named
from pelton.bluefog._names import NAMES, PARTING
from pelton.bluefog._timeline import Timeline
from pelton.bluefog._topology import DiGraph, Topology
from pelton.errors import InvalidArgument, PeltonError

_NODES_PER_MACHINE = "BLUEFOG_NODES_PER_MACHINE"
_TIMELINE = "BLUEFOG_TIMELINE"
_PARTING_S = 10.0  # a rank that goes first would end the averages of those that are some steps behind


class World:
    """What one `init` has made.

    Threads: the main thread makes and ends it. Owns: its queues and its timeline, and the session if it has begun that.
    """

    def __init__(self, session: Session, owns_session: bool) -> None:
        """Opens the queue of all ranks; collective.

        Raises:
          InvalidArgument: a variable of BlueFog's is wrong.
        """
        self.session = session
        self.owns_session = owns_session
        self.rank = session.backend.rank
        self.size = session.backend.world_size
        self.machines = _machines_of(session.hosts)
        self.machine = next(i for i, ranks in enumerate(self.machines) if self.rank in ranks)
        self.timeline = _timeline_of(self.rank)
        self.queue = _C.Queue(session.backend, range(self.size))
        session.close_at_end(self.queue)
        self.topology: Topology | None = None
        self.machine_topology: Topology | None = None
        self.skips_negotiation = False
        self.live_windows: set[str] = set()  # the names of the windows that the topology must not change under
        self._closed_first: list[_session.Closable] = []
        self._local_queue: _C.Queue | None = None
        self._gpu_queues: dict[torch.device, _C.Queue] = {}
        self._local_gpu_queues: dict[torch.device, _C.Queue] = {}

    @property
    def local_ranks(self) -> list[int]:
        """The ranks of this one's machine, ascending."""
        return self.machines[self.machine]

    @property
    def is_homogeneous(self) -> bool:
        """Whether all machines have equally many ranks, one machine's after the other's."""
        count = len(self.local_ranks)
        return self.machines == [list(range(i * count, (i + 1) * count)) for i in range(len(self.machines))]

    @property
    def local_queue(self) -> _C.Queue:
        """That of the machine's ranks; opened at the first use, which is collective over them."""
        if self._local_queue is None:
            self._local_queue = _C.Queue(self.session.backend, self.local_ranks)
            self.session.close_at_end(self._local_queue)
        return self._local_queue

    def queue_of(self, tensor: torch.Tensor) -> _C.Queue:
        """That of all ranks for operations on such tensors.

        That of a GPU is opened at the first use, which is collective over all ranks.

        Raises:
          InvalidArgument: the tensor is on neither the CPU nor a GPU.
        """
        if not isinstance(tensor, torch.Tensor) or tensor.is_cpu:  # what is no tensor, the queue refuses by name
            return self.queue
        return self._gpu_queue(self._gpu_queues, range(self.size), tensor.device)

    def local_queue_of(self, tensor: torch.Tensor) -> _C.Queue:
        """That of the machine's ranks for operations on such tensors; opened at the first use, as `local_queue`.

        Raises:
          InvalidArgument: the tensor is on neither the CPU nor a GPU.
        """
        if not isinstance(tensor, torch.Tensor) or tensor.is_cpu:
            return self.local_queue
        return self._gpu_queue(self._local_gpu_queues, self.local_ranks, tensor.device)

    def _gpu_queue(self, queues: dict[torch.device, _C.Queue], ranks: Sequence[int], device: torch.device) -> _C.Queue:
        if device not in queues:
            queues[device] = _C.Queue(self.session.backend, ranks, device)
            self.session.close_at_end(queues[device])
        return queues[device]

    def close_at_end(self, first: _session.Closable) -> None:
        """Has `end` close something before the queues; the session does it where that ends first."""
        self._closed_first.append(first)
        self.session.close_at_end(first)

    def set_topology(self, graph: DiGraph, is_weighted: bool) -> None:
        """Makes `graph` the topology of the ranks. Collective."""
        with waits_named("set_topology"):
            _topology.agree_on_graph(self.session.world_communicator, graph, is_weighted, self.size, "topology")
        self.topology = Topology(graph, is_weighted, self.rank)

    def set_machine_topology(self, graph: DiGraph, is_weighted: bool) -> None:
        """Makes `graph` the topology of the machines. Collective."""
        count = len(self.machines)
        with waits_named("set_machine_topology"):
            _topology.agree_on_graph(self.session.world_communicator, graph, is_weighted, count, "machine topology")
        self.machine_topology = Topology(graph, is_weighted, self.machine)

    def end(self) -> None:
        """Waits for the other ranks for a while, closes its queues, and leaves the job if it has joined it."""
        if self.timeline is not None:
            self.timeline.close()
        if not (_session.is_initialized() and _session.current() is self.session):
            return
        self._part()
        for first in self._closed_first:
            first.close()
        local_queues = (*self._local_gpu_queues.values(), self._local_queue)  # what waits for them ends with them
        for queue in (*local_queues, *self._gpu_queues.values(), self.queue):
            if queue is not None:
                queue.close()
        if self.owns_session:
            _session.destroy()

    def _part(self) -> None:
        """Waits for the other ranks for a while. Those that are at an operation then fail, and say why."""
        reason = (
            f"rank {self.rank} (pid {os.getpid()}) has left: its script ended or called shutdown() "
            f"{_PARTING_S:g} s before another rank was done (did rank {self.rank} fail, or have fewer batches?)"
        )
        try:
            self.queue.leave(PARTING, reason, _PARTING_S)
        except InvalidArgument as error:
            _log.tell(logging.WARNING, NAMES.parting_in(error) or str(error))
        except PeltonError:
            pass  # a rank that is lost or stays behind was reported where it mattered


_world: World | None = None


def current() -> World:
    """What the last `init` has made.

    Raises:
      NotInitialized: there is nothing, or it was ended.
    """
    _fork.check()
    if _world is None or not _session.is_initialized() or _session.current() is not _world.session:
        raise NotInitialized("BlueFog has not been initialized; call bluefog.torch.init() first")
    return _world


def is_initialized() -> bool:
    """Whether `current` has an answer."""
    return _world is not None and _session.is_initialized() and _session.current() is _world.session


def begin() -> None:
    """Joins the job unless this process has, and forgets the machine topology. Collective."""
    global _world
    if not is_initialized():
        _variables.take_log_level()
        owns_session = not _session.is_initialized()
        if owns_session:
            _session.init_process_group(torch_distributed=False)
        try:
            _world = World(_session.current(), owns_session)
        except BaseException:
            if owns_session:  # else nobody would ever leave the job
                _session.destroy()
            raise
        if _world.rank == 0:
            _variables.tell_of_those_without_meaning()
    current().machine_topology = None


def end() -> None:
    """Ends what `begin` has begun. Idempotent."""
    global _world
    world, _world = _world, None
    if world is not None:
        world.end()


def _machines_of(hosts: list[int]) -> list[list[int]]:
    """The ranks of each machine: a host, or a block of BLUEFOG_NODES_PER_MACHINE ranks.

    Raises:
      InvalidArgument: the variable is no number that divides the number of ranks.
    """
    text = os.environ.get(_NODES_PER_MACHINE)
    if text is None:
        return [[rank for rank, host in enumerate(hosts) if host == one] for one in dict.fromkeys(hosts)]
    count = int(text) if text.isdigit() else 0
    if count < 1 or len(hosts) % count != 0:
        raise InvalidArgument(f"{_NODES_PER_MACHINE}={text!r}: must divide the number of ranks, {len(hosts)}")
    return [list(range(first, first + count)) for first in range(0, len(hosts), count)]


def _timeline_of(rank: int) -> Timeline | None:
    """What BLUEFOG_TIMELINE asks for.

    Raises:
      InvalidArgument: its file cannot be written.
    """
    prefix = os.environ.get(_TIMELINE)
    if not prefix:
        return None
    try:
        return Timeline(f"{prefix}{rank}.json")
    except OSError as error:
        raise InvalidArgument(f"{_TIMELINE}={prefix!r}: {error.filename}: {error.strerror}") from None


def _forget_in_child() -> None:
    global _world
    _world = None


def _at_exit() -> None:
    """Not after an exception that ends the process: the other ranks need not be waited for then."""
    if getattr(sys, "last_value", None) is None:
        with contextlib.suppress(PeltonError):
            end()


_fork.forget_in_child(_forget_in_child)
atexit.register(_at_exit)
