"""Which weight table a call means: the topology's, one given for its edges, or one of other edges."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, Union

import torch

from pelton import _C
from pelton.bluefog._errors import NoMachineTopology, WrongType
from pelton.bluefog._topology import Topology
from pelton.bluefog._world import World
from pelton.errors import InvalidArgument, PeltonError

Weights = Mapping[int, float]
Destinations = Union[Mapping[int, float], Sequence[int], None]

_SUM = 0


@functools.lru_cache(maxsize=512)
def _table(
    own: float, sources: tuple[tuple[int, float], ...], destinations: tuple[tuple[int, float], ...], sends_weights: bool
) -> _C.WeightTable:
    return _C.WeightTable(own, sources, destinations, sends_weights)


def table_of(
    world: World, self_weight: float | None, src_weights: Weights | None, dst_weights: Destinations, checks: bool
) -> _C.WeightTable:
    """The table of a neighbor_allreduce. Collective where `checks` and `dst_weights` are given.

    Raises:
      InvalidArgument: the arguments do not belong together, or name ranks that they must not.
    """
    if dst_weights is not None:
        ends = _Ends(world, checks, "neighbor_allreduce")
        with ends:
            own, src_weights = _both(self_weight, src_weights)
            ends.add("src_weights", src_weights, "dst_weights", dst_weights)
        return _table(own, ends.sorted_sources, ends.sorted_destinations, True)
    if self_weight is None and src_weights is None:
        return _topology_of(world).table
    return _over_topology(world, *_both(self_weight, src_weights))


def _both(self_weight: float | None, src_weights: Weights | None) -> tuple[float, Weights]:
    if self_weight is None or src_weights is None:
        raise InvalidArgument(
            f"self_weight={self_weight!r}, src_weights={src_weights!r}: give both or none; with dst_weights both are "
            "needed, and src_weights={} is one without sources"
        )
    return _number("self_weight", self_weight), src_weights


class _Ends:
    """The edges that a call names. In its `with` block they are added; at its end, where `checks`, all ranks compare
    them, so that what is wrong on one rank is an error on all.

    Threads: one. Owns: the weights.
    """

    def __init__(self, world: World, checks: bool, operation: str) -> None:
        self._world = world
        self._checks = checks
        self.operation = operation
        self.sources: dict[int, float] = {}
        self.destinations: dict[int, float] = {}

    def add(self, src_name: str, sources: Any, dst_name: str, destinations: Any) -> None:
        found = _checked(src_name, sources, self._world.size), _checked(dst_name, destinations, self._world.size)
        for name, weights in zip((src_name, dst_name), found):
            if self._world.rank in weights:
                raise InvalidArgument(
                    f"{name}: rank {self._world.rank} is this rank itself; give its weight as self_weight"
                )
        self.sources, self.destinations = found

    @property
    def sorted_sources(self) -> tuple[tuple[int, float], ...]:
        return tuple(sorted(self.sources.items()))

    @property
    def sorted_destinations(self) -> tuple[tuple[int, float], ...]:
        return tuple(sorted(self.destinations.items()))

    def __enter__(self) -> None:
        """Nothing so far."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._checks and (error is None or isinstance(error, PeltonError)):
            _compare_ends(self._world, self, error)


def _over_topology(world: World, own: float, sources: Weights) -> _C.WeightTable:
    """A source that is not named sends all the same, and has the weight 0."""
    sources = _checked("src_weights", sources, world.size)
    topology = _topology_of(world)
    surplus = sorted(set(sources) - set(topology.in_neighbors))
    if surplus:
        raise InvalidArgument(
            f"src_weights: rank(s) {surplus} are no in-neighbors of rank {world.rank}, which are "
            f"{sorted(topology.in_neighbors)}; give dst_weights too for edges that the topology has not"
        )
    weights = tuple((rank, sources.get(rank, 0.0)) for rank in sorted(topology.in_neighbors))
    return _table(own, weights, tuple((rank, 1.0) for rank in sorted(topology.out_neighbors)), False)


def gather_table_of(
    world: World, src_ranks: Sequence[int] | None, dst_ranks: Sequence[int] | None, checks: bool
) -> tuple[_C.WeightTable, list[int]]:
    """The table of a neighbor_allgather, and the sources in the order of its result.

    Raises:
      InvalidArgument: only one of the two is given, or they name ranks that they must not.
    """
    if src_ranks is None and dst_ranks is None:
        topology = _topology_of(world)
        return topology.table, sorted(topology.in_neighbors)
    ends = _Ends(world, checks, "neighbor_allgather")
    with ends:
        if src_ranks is None or dst_ranks is None:
            raise InvalidArgument(f"src_ranks={src_ranks!r}, dst_ranks={dst_ranks!r}: give both or none")
        ends.add("src_ranks", src_ranks, "dst_ranks", dst_ranks)
    return _table(1.0, ends.sorted_sources, ends.sorted_destinations, False), list(ends.sources)


def machine_table_of(
    world: World, self_weight: float | None, src_weights: Weights | None, dst_weights: Destinations, checks: bool
) -> _C.WeightTable:
    """The table of a hierarchical_neighbor_allreduce: of machines' means, along the edges between the ranks that have
    the same place in their machines.

    Raises:
      InvalidArgument: the arguments do not belong together, or name machines that are no neighbors; there is no machine
        topology, or machines are not alike.
    """
    ends = _Ends(world, checks, "hierarchical_neighbor_allreduce")
    with ends:
        own, sources, destinations = _between_machines(world, self_weight, src_weights, dst_weights)
        count, place = len(world.local_ranks), world.local_ranks.index(world.rank)
        ends.sources = {machine * count + place: weight for machine, weight in sources.items()}
        ends.destinations = {machine * count + place: weight for machine, weight in destinations.items()}
    sends_weights = dst_weights is not None
    return _table(own, ends.sorted_sources, ends.sorted_destinations, sends_weights)


def _between_machines(
    world: World, self_weight: float | None, src_weights: Weights | None, dst_weights: Destinations
) -> tuple[float, dict[int, float], dict[int, float]]:
    """The own weight, and those by machine."""
    if not world.is_homogeneous:
        raise InvalidArgument(
            f"the machines' ranks {world.machines} are not equally many, one machine's after the other's"
        )
    topology = world.machine_topology
    if self_weight is None and src_weights is None and dst_weights is None:
        if topology is None:
            raise NoMachineTopology("there is no machine topology; call set_machine_topology() first")
        return topology.own, dict(topology.sources), dict.fromkeys(topology.out_neighbors, 1.0)
    if self_weight is None or src_weights is None or dst_weights is None:
        raise InvalidArgument("self_weight, src_machine_weights, dst_machine_weights: give all three or none")
    count = len(world.machines)
    sources = _checked("src_machine_weights", src_weights, count)
    destinations = _checked("dst_machine_weights", dst_weights, count)
    if world.machine in {*sources, *destinations}:
        raise InvalidArgument(
            f"src_machine_weights={sources}, dst_machine_weights={destinations}: machine {world.machine} is this one "
            "itself; give its weight as self_weight"
        )
    if topology is None:  # the call names all edges, as those of BlueFog's pytorch_benchmark.py do
        return _number("self_weight", self_weight), sources, destinations
    for name, named, allowed in (
        ("src_machine_weights", sources, topology.in_neighbors),
        ("dst_machine_weights", destinations, topology.out_neighbors),
    ):
        if set(named) - set(allowed):
            raise InvalidArgument(f"{name}={named}: the neighbors of machine {world.machine} are {sorted(allowed)}")
    return _number("self_weight", self_weight), sources, destinations


def _compare_ends(world: World, ends: _Ends, error: PeltonError | None) -> None:
    """Holds the edges that ranks send along against those that they receive from. Collective.

    Raises:
      InvalidArgument: an edge has one end only, or another rank's arguments are wrong; on every rank, naming it.
    """
    size = world.size
    found = torch.zeros(size + 1, size, dtype=torch.uint8, device="cpu")
    found[world.rank, list(ends.destinations)] += 1
    found[list(ends.sources), world.rank] += 2
    found[size, world.rank] = error is not None
    shown_as = f"{ends.operation}'s check of the topology (enable_topo_check)"
    found = world.queue.allreduce_now(found, _SUM, True, None, shown_as=shown_as)
    if error is not None:
        return
    for rank in found[size].nonzero().flatten().tolist():
        raise InvalidArgument(f"rank {rank} has called this operation with wrong arguments; its own error says which")
    for i, j in ((found[:size] == 1) | (found[:size] == 2)).nonzero().tolist():
        does, does_not = f"rank {i} sends to rank {j}", f"rank {j} does not receive from it"
        if found[i, j] == 2:
            does, does_not = f"rank {j} receives from rank {i}", f"rank {i} does not send to it"
        raise InvalidArgument(f"{does}, but {does_not}; name both ends of each edge, or pass enable_topo_check=False")


def _topology_of(world: World) -> Topology:
    if world.topology is None:
        raise InvalidArgument("there is no topology; call set_topology() first")
    return world.topology


def _number(name: str, weight: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, numbers.Real):
        raise InvalidArgument(f"{name}={weight!r}: must be a number")
    return float(weight)


def _checked(name: str, ranks: Any, size: int) -> dict[int, float]:
    """By rank; a list's weights are 1. An array of NumPy's or a tensor is a list, too."""
    if hasattr(ranks, "tolist"):
        ranks = ranks.tolist()
    if isinstance(ranks, Mapping):
        weights = {rank: _number(f"{name}[{rank!r}]", weight) for rank, weight in ranks.items()}
    elif isinstance(ranks, Sequence) and not isinstance(ranks, str):
        weights = dict.fromkeys(ranks, 1.0)
        if len(weights) != len(ranks):
            raise InvalidArgument(f"{name}={ranks!r}: names a rank twice")
    else:
        raise WrongType(f"{name}={ranks!r}: must be a dict from rank to weight, or a list of ranks")
    for rank in weights:
        if isinstance(rank, bool) or not isinstance(rank, numbers.Integral) or not 0 <= int(rank) < size:
            raise InvalidArgument(f"{name}: {rank!r} is not in [0, {size})")
    return {int(rank): weight for rank, weight in weights.items()}
