"""Who a process is among the others, and the graphs that it averages over."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Union

import networkx as nx
import torch

from pelton import _log
from pelton.bluefog import _world
from pelton.bluefog._errors import WindowsAlive, WrongType
from pelton.bluefog._timeline import Timeline
from pelton.bluefog.common.topology_util import ExponentialGraph
from pelton.bluefog.torch._handles import HANDLES
from pelton.errors import InvalidArgument

__all__ = [
    "get_skip_negotiate_stage",
    "in_neighbor_machine_ranks",
    "in_neighbor_ranks",
    "init",
    "is_homogeneous",
    "is_topo_weighted",
    "load_machine_topology",
    "load_topology",
    "local_rank",
    "local_size",
    "machine_rank",
    "machine_size",
    "mpi_threads_supported",
    "nccl_built",
    "out_neighbor_machine_ranks",
    "out_neighbor_ranks",
    "rank",
    "resume",
    "set_machine_topology",
    "set_skip_negotiate_stage",
    "set_topology",
    "shutdown",
    "size",
    "suspend",
    "timeline_context",
    "timeline_end_activity",
    "timeline_start_activity",
    "unified_mpi_window_model_supported",
]

DiGraph = Any  # networkx's, which has no types

_is_suspended = False
_MOST_NAMES_SHOWN = 8


def init(topology_fn: Union[Callable[[int], DiGraph], DiGraph, None] = None, is_weighted: bool = False) -> None:
    """Joins the job, and sets the topology. Collective. Called again it sets the topology anew.

    Args:
      topology_fn: makes a graph of the number of ranks; None for ExponentialGraph. Or a graph.
      is_weighted: whether the graph's weights count, or every rank takes the plain mean over itself and its neighbors.

    Raises:
      WrongType: it is neither a function nor a graph over the ranks.
      InvalidArgument: ranks give different graphs.
      WindowsAlive: there are windows.
    """
    if _world.is_initialized() and _world.current().live_windows:
        raise WindowsAlive(
            f"init: there are windows ({_live_windows()}), which were made for the topology in force; "
            "call win_free() on all ranks before init()"
        )
    if topology_fn is not None and not isinstance(topology_fn, nx.DiGraph) and not callable(topology_fn):
        raise WrongType(f"topology_fn={topology_fn!r}: must be a function of the number of ranks, or a DiGraph")
    _world.begin()
    graph = topology_fn(size()) if callable(topology_fn) and not isinstance(topology_fn, nx.DiGraph) else topology_fn
    set_topology(graph, is_weighted)


def shutdown() -> None:
    """Waits for the other ranks for a while, and leaves the job unless `pelton.torch_api` has joined it.

    `init` may be called after it. Idempotent. A program that ends does the same by itself.
    """
    HANDLES.clear()
    _world.end()


def size() -> int:
    """The number of ranks.

    Raises:
      NotInitialized: as all below.
    """
    return _world.current().size


def rank() -> int:
    """This process's number, from 0 on."""
    return _world.current().rank


def local_size() -> int:
    """The number of ranks on this machine: of a host, or BLUEFOG_NODES_PER_MACHINE."""
    return len(_world.current().local_ranks)


def local_rank() -> int:
    """This process's number on its machine, from 0 on."""
    world = _world.current()
    return world.local_ranks.index(world.rank)


def machine_size() -> int:
    """The number of machines."""
    return len(_world.current().machines)


def machine_rank() -> int:
    """This machine's number, from 0 on."""
    return _world.current().machine


def is_homogeneous() -> bool:
    """Whether all machines have equally many ranks, one machine's after the other's."""
    return _world.current().is_homogeneous


def load_topology() -> DiGraph:
    """The graph over the ranks that is in force; a copy."""
    topology = _world.current().topology
    return None if topology is None else topology.graph.copy()


def set_topology(topology: DiGraph | None = None, is_weighted: bool = False) -> bool:
    """Averages over another graph from now on. Collective.

    Args:
      topology: over the ranks; None for ExponentialGraph. A self-loop has a rank's own weight.
      is_weighted: whether its weights count, or every rank takes the plain mean. Takes effect on the same graph, too.

    Returns:
      True; False, and nothing is changed, while there are windows.

    Raises:
      WrongType: it is no graph over the ranks.
      InvalidArgument: ranks give different graphs; names the first edge that differs.
    """
    world = _world.current()
    if world.live_windows:
        _log.tell(logging.ERROR, f"bluefog: set_topology: there are windows ({_live_windows()}); call win_free() first")
        return False
    world.set_topology(ExponentialGraph(world.size) if topology is None else topology, is_weighted)
    return True


def _live_windows() -> str:
    return ", ".join(sorted(_world.current().live_windows)[:_MOST_NAMES_SHOWN])


def is_topo_weighted() -> bool:
    """Whether the weights of the topology in force count."""
    topology = _world.current().topology
    return topology is not None and topology.is_weighted


def load_machine_topology() -> DiGraph:
    """The graph over the machines that is in force; a copy, or None."""
    topology = _world.current().machine_topology
    return None if topology is None else topology.graph.copy()


def set_machine_topology(topology: DiGraph, is_weighted: bool = False) -> bool:
    """Averages over another graph of machines from now on. Collective.

    Args:
      topology: over the machines.
      is_weighted: as `set_topology`.

    Returns:
      True.

    Raises:
      InvalidArgument: it is None, or ranks give different graphs.
      WrongType: it is no graph over the machines.
    """
    if topology is None:
        raise InvalidArgument("topology=None: must be a graph over the machines")
    _world.current().set_machine_topology(topology, is_weighted)
    return True


def in_neighbor_ranks() -> list[int]:
    """The ranks that this one receives from in the topology, without itself, in the graph's order."""
    topology = _world.current().topology
    return [] if topology is None else list(topology.in_neighbors)


def out_neighbor_ranks() -> list[int]:
    """The ranks that this one sends to in the topology, without itself, in the graph's order."""
    topology = _world.current().topology
    return [] if topology is None else list(topology.out_neighbors)


def in_neighbor_machine_ranks() -> list[int]:
    """The machines that this one receives from in the machine topology."""
    topology = _world.current().machine_topology
    return [] if topology is None else list(topology.in_neighbors)


def out_neighbor_machine_ranks() -> list[int]:
    """The machines that this one sends to in the machine topology."""
    topology = _world.current().machine_topology
    return [] if topology is None else list(topology.out_neighbors)


def set_skip_negotiate_stage(value: bool) -> None:
    """Remembers the value. It changes nothing, because no operation here is negotiated with a coordinator."""
    _world.current().skips_negotiation = bool(value)


def get_skip_negotiate_stage() -> bool:
    """What `set_skip_negotiate_stage` was given last."""
    return _world.current().skips_negotiation


def mpi_threads_supported() -> bool:
    """Whether several threads may call; they may, one after the other on all ranks in the same order."""
    _world.current()
    return True


def unified_mpi_window_model_supported() -> bool:
    """Whether a window and its tensor are the same memory; they are."""
    _world.current()
    return True


def nccl_built() -> bool:
    """Whether operations on tensors of a GPU can use NCCL, as allreduce, broadcast and allgather do."""
    return torch.cuda.is_available() and torch.distributed.is_nccl_available()


def suspend() -> None:
    """Refuses operations until `resume`."""
    global _is_suspended
    _world.current()
    _is_suspended = True
    _log.tell(logging.INFO, "bluefog: suspended; operations are refused until resume()")


def resume() -> None:
    """Ends `suspend`."""
    global _is_suspended
    _is_suspended = False


def active_world() -> _world.World:
    """The world that an operation runs in.

    Raises:
      NotInitialized: there is none.
      InvalidArgument: it is suspended.
    """
    if _is_suspended:
        raise InvalidArgument("operations are suspended; call bluefog.torch.resume() first")
    return _world.current()


def timeline_start_activity(tensor_name: str, activity_name: str) -> bool:
    """Begins an activity in the timeline; False: BLUEFOG_TIMELINE is not set.

    Args:
      tensor_name: of the row that it is shown in.
      activity_name: of the activity.
    """
    timeline = _timeline()
    if timeline is not None:
        timeline.start(tensor_name, activity_name)
    return timeline is not None


def timeline_end_activity(tensor_name: str) -> bool:
    """Ends what this thread has begun last in a row of the timeline; False: there is nothing, or no timeline.

    Args:
      tensor_name: of the row.
    """
    timeline = _timeline()
    return timeline is not None and timeline.end(tensor_name)


@contextmanager
def timeline_context(tensor_name: str, activity_name: str) -> Iterator[None]:
    """An activity in the timeline for a `with` block.

    Args:
      tensor_name: of the row that it is shown in.
      activity_name: of the activity.
    """
    timeline_start_activity(tensor_name, activity_name)
    try:
        yield
    finally:
        timeline_end_activity(tensor_name)


def shown_if_there_is_a_timeline(tensor_name: str, activity_name: str) -> AbstractContextManager[None]:
    """`timeline_context` for what nobody asked to see: without a timeline it says nothing.

    Args:
      tensor_name: of the row that it is shown in.
      activity_name: of the activity.
    """
    if _world.current().timeline is None:
        return nullcontext()
    return timeline_context(tensor_name, activity_name)


def _timeline() -> Timeline | None:
    timeline = _world.current().timeline
    if timeline is None:
        _tell_of_no_timeline()
    return timeline


@functools.cache
def _tell_of_no_timeline() -> None:
    """Once a process."""
    _log.tell(logging.ERROR, "bluefog: there is no timeline; set BLUEFOG_TIMELINE, or bfrun --timeline-filename")
