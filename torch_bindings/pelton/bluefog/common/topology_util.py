"""BlueFog's graphs: as networkx graphs whose edges have weights, and as endless lists of whom to exchange with.

The weight of the edge from i to j is what j multiplies i's tensor by; a self-loop has a rank's own. The runtime makes
the graphs (comm/graph); `pelton topology` lists and draws them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import networkx as nx

from pelton import _C
from pelton.errors import InvalidArgument

DiGraph: TypeAlias = Any  # networkx's, which has no types
SendAndRecv: TypeAlias = Iterator[tuple[list[int], list[int]]]

_SIDES = ("both", "left", "right")


def ExponentialTwoGraph(size: int) -> DiGraph:  # noqa: N802 (the name is BlueFog's, as all below)
    """Edges to the distances that are powers of 2, all weights equal.

    Args:
      size: the number of ranks.

    Raises:
      InvalidArgument: it is below 1.
    """
    return _static("exponential", size)


def PowerTwoRingGraph(size: int) -> DiGraph:  # noqa: N802
    """The older name of `ExponentialTwoGraph`."""
    return ExponentialTwoGraph(size)


def ExponentialGraph(size: int, base: int = 2) -> DiGraph:  # noqa: N802
    """Edges to the distances that are powers of `base`, all weights equal.

    BlueFog's logarithm misses some of them, such as 243 for base 3; they are here.

    Args:
      size: the number of ranks.
      base: at least 2.

    Raises:
      InvalidArgument: an argument is too small.
    """
    return _static("exponential", size, base=base)


def SymmetricExponentialGraph(size: int, base: int = 4) -> DiGraph:  # noqa: N802
    """The same, with edges in both directions.

    Args:
      size: the number of ranks.
      base: at least 2.

    Raises:
      InvalidArgument: an argument is too small.
    """
    return _static("symmetric_exponential", size, base=base)


def MeshGrid2DGraph(size: int, shape: tuple[int, int] | None = None) -> DiGraph:  # noqa: N802
    """Rows and columns, with Metropolis weights.

    Args:
      size: the number of ranks.
      shape: rows and columns; None for the two closest factors of `size`, fewer rows than columns.

    Raises:
      InvalidArgument: rows times columns is not `size`.
    """
    return _static("mesh_grid", size, shape="auto" if shape is None else f"{shape[0]}x{shape[1]}")


def StarGraph(size: int, center_rank: int = 0) -> DiGraph:  # noqa: N802
    """Every rank with one in the middle.

    Args:
      size: the number of ranks.
      center_rank: the one in the middle.

    Raises:
      InvalidArgument: there is no such rank.
    """
    return _static("star", size, center=center_rank)


def RingGraph(size: int, connect_style: int = 0) -> DiGraph:  # noqa: N802
    """Neighbours on both sides, or on one.

    Args:
      size: the number of ranks.
      connect_style: 0 both; 1 each rank sends to the one below, 2 to the one above.

    Raises:
      InvalidArgument: it is neither.
    """
    if connect_style not in (0, 1, 2):
        raise InvalidArgument(f"connect_style={connect_style!r}: must be 0 (both sides), 1 (left) or 2 (right)")
    return _static("ring", size, sides=_SIDES[connect_style])


def FullyConnectedGraph(size: int) -> DiGraph:  # noqa: N802
    """Everyone with everyone, all weights equal.

    Args:
      size: the number of ranks.

    Raises:
      InvalidArgument: it is below 1.
    """
    return _static("fully_connected", size)


def IsTopologyEquivalent(topo1: DiGraph | None, topo2: DiGraph | None) -> bool:  # noqa: N802
    """Whether both have the same edges with the same weights; False where one is None.

    Args:
      topo1: a graph.
      topo2: another one.
    """
    if topo1 is None or topo2 is None or set(topo1.nodes) != set(topo2.nodes):
        return False
    return _weights(topo1) == _weights(topo2)


def IsRegularGraph(topo: DiGraph) -> bool:  # noqa: N802
    """Whether all ranks have equally many edges, those that come and those that go together.

    Args:
      topo: a graph.
    """
    return len({degree for _, degree in topo.degree()}) <= 1


def GetRecvWeights(topo: DiGraph, rank: int) -> tuple[float, dict[int, float]]:  # noqa: N802
    """A rank's own weight, and those of its sources.

    Args:
      topo: a graph.
      rank: one of its ranks.
    """
    weights = {source: float(topo[source][rank].get("weight", 1.0)) for source in sorted(topo.predecessors(rank))}
    return weights.pop(rank, 0.0), weights


def GetWeights(topo: DiGraph, rank: int) -> tuple[float, dict[int, float]]:  # noqa: N802
    """The older name of `GetRecvWeights`."""
    return GetRecvWeights(topo, rank)


def GetSendWeights(topo: DiGraph, rank: int) -> tuple[float, dict[int, float]]:  # noqa: N802
    """A rank's own weight, and those with which its destinations take what it sends.

    Args:
      topo: a graph.
      rank: one of its ranks.
    """
    weights = {target: float(topo[rank][target].get("weight", 1.0)) for target in sorted(topo.successors(rank))}
    return weights.pop(rank, 0.0), weights


def isPowerOf(x: int, base: int) -> bool:  # noqa: N802
    """Whether x is base to some power from 0 on.

    Args:
      x: above 0.
      base: above 1.

    Raises:
      InvalidArgument: an argument is no whole number, or too small.
    """
    if not isinstance(base, int) or base < 2 or not isinstance(x, int) or x < 1:
        raise InvalidArgument(f"x={x!r}, base={base!r}: must be whole numbers, x at least 1 and base at least 2")
    while x % base == 0:
        x //= base
    return x == 1


def GetDynamicOnePeerSendRecvRanks(topo: DiGraph, self_rank: int) -> SendAndRecv:  # noqa: N802
    """Endless: whom a rank sends to, one of its neighbours after the other by distance upward, and whom it then
    receives from, which may be nobody or several.

    Args:
      topo: a graph over the ranks from 0 on.
      self_rank: the rank.

    Raises:
      InvalidArgument: the nodes are not the numbers from 0 on.
    """
    size = len(topo)
    if set(topo.nodes) != set(range(size)):
        raise InvalidArgument(f"topo: its nodes must be the numbers from 0 to {size - 1}")
    edges = [(i, j, 1.0) for i, j in topo.edges if i != j]
    return _turns(_C.one_peer_of([1.0] * size, edges), self_rank)


def GetDynamicSendRecvRanks(topo: DiGraph, self_rank: int) -> SendAndRecv:  # noqa: N802
    """The older name of `GetDynamicOnePeerSendRecvRanks`."""
    return GetDynamicOnePeerSendRecvRanks(topo, self_rank)


def GetExp2DynamicSendRecvMachineRanks(  # noqa: N802
    world_size: int, local_size: int, self_rank: int, local_rank: int
) -> SendAndRecv:
    """Endless: which machine a rank's sends to and which it receives from, by distances that are powers of 2.

    Args:
      world_size: the number of ranks.
      local_size: of each machine.
      self_rank: the rank.
      local_rank: its place in its machine.

    Raises:
      InvalidArgument: the machines are not two or more of one size, or the rank has another place.
    """
    _check_machines(world_size, local_size)
    if self_rank % local_size != local_rank:
        raise InvalidArgument(f"local_rank={local_rank}: rank {self_rank} has the place {self_rank % local_size}")
    machines = _C.make_graphs("exp2_machines", world_size // local_size, {"ranks_each": "1"})
    return _turns(machines, self_rank // local_size)


def GetInnerOuterRingDynamicSendRecvRanks(world_size: int, local_size: int, self_rank: int) -> SendAndRecv:  # noqa: N802
    """Endless: rings inside the machines; one place after another has its turn in rings between them.

    Args:
      world_size: the number of ranks.
      local_size: of each machine, above 2.
      self_rank: the rank.

    Raises:
      InvalidArgument: the machines are not two or more of one size above 2.
    """
    _check_machines(world_size, local_size)
    return _turns(_C.make_graphs("inner_outer_ring", world_size, {"ranks_each": str(local_size)}), self_rank)


def GetInnerOuterExpo2DynamicSendRecvRanks(world_size: int, local_size: int, self_rank: int) -> SendAndRecv:  # noqa: N802
    """The same by distances that are powers of 2.

    Args:
      world_size: the number of ranks.
      local_size: of each machine, above 2.
      self_rank: the rank.

    Raises:
      InvalidArgument: the machines are not two or more of one size above 2.
    """
    _check_machines(world_size, local_size)
    return _turns(_C.make_graphs("inner_outer_expo2", world_size, {"ranks_each": str(local_size)}), self_rank)


def _static(name: str, size: int, **options: int | str) -> DiGraph:
    own, edges = _C.make_graphs(name, size, {key: str(value) for key, value in options.items()}).at(0)
    graph: DiGraph = nx.DiGraph()
    graph.add_weighted_edges_from([(rank, rank, weight) for rank, weight in enumerate(own)])
    graph.add_weighted_edges_from(edges)
    return graph


def _weights(topo: DiGraph) -> dict[tuple[int, int], float]:
    return {(i, j): float(data.get("weight", 1.0)) for i, j, data in topo.edges(data=True)}


def _check_machines(world_size: int, local_size: int) -> None:
    if local_size < 1 or world_size % local_size != 0:
        raise InvalidArgument(f"world_size={world_size}, local_size={local_size}: machines must be of one size")


def _turns(graphs: _C.Graphs, rank: int) -> SendAndRecv:
    if not 0 <= rank < graphs.size:
        raise InvalidArgument(f"rank {rank}: there are ranks from 0 to {graphs.size - 1}")
    return _endless(graphs, rank)


def _endless(graphs: _C.Graphs, rank: int) -> SendAndRecv:
    step = 0
    while True:
        _, edges = graphs.at(step % graphs.period)
        yield [j for i, j, _ in edges if i == rank], [i for i, j, _ in edges if j == rank]
        step += 1
