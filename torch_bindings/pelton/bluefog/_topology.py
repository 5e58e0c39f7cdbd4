"""A graph over ranks or machines as the process uses it, and the agreement on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import networkx as nx

from pelton import _C
from pelton._training._objects import text_of_rank0
from pelton._training._state_broadcast import agree
from pelton.bluefog._errors import WrongType
from pelton.bluefog.common.topology_util import GetRecvWeights, GetSendWeights
from pelton.errors import InvalidArgument

DiGraph = Any  # networkx's, which has no types
Edges = list[list[float]]


class Topology:
    """One graph, and one rank's place in it. Threads: immutable. Owns: a copy of the graph."""

    def __init__(self, graph: DiGraph, is_weighted: bool, place: int) -> None:
        """Args:
        graph: over the numbers from 0 on.
        is_weighted: whether its weights count, or every rank takes the plain mean.
        place: this rank's number in it.
        """
        self.graph = graph.copy()
        self.is_weighted = is_weighted
        self.in_neighbors = [rank for rank in graph.predecessors(place) if rank != place]
        self.out_neighbors = [rank for rank in graph.successors(place) if rank != place]
        self.own, self.sources = recv_weights(graph, is_weighted, place)
        _, destinations = GetSendWeights(graph, place)
        self.table = _C.WeightTable(self.own, sorted(self.sources.items()), [(rank, 1.0) for rank in destinations])


def recv_weights(graph: DiGraph, is_weighted: bool, place: int) -> tuple[float, dict[int, float]]:
    """The own weight of one place, and its sources'."""
    own, sources = GetRecvWeights(graph, place)
    if is_weighted:
        return own, sources
    share = 1.0 / (len(sources) + 1)
    return share, dict.fromkeys(sources, share)


def _complaint_about(graph: DiGraph, size: int, name: str) -> WrongType | None:
    """What is wrong with it if it is no graph over `size` places."""
    if not isinstance(graph, nx.DiGraph):
        return WrongType(f"{name}={graph!r}: must be a networkx.DiGraph")
    if graph.is_multigraph():
        return WrongType(f"{name}={graph!r}: has parallel edges; give a networkx.DiGraph whose weights are their sums")
    if set(graph.nodes) != set(range(size)):
        nodes = sorted(graph.nodes, key=str)[:8]
        return WrongType(f"{name}: has the nodes {nodes}; must have those from 0 to {size - 1}")
    return None


def agree_on_graph(communicator: _C.Communicator, graph: DiGraph, is_weighted: bool, size: int, name: str) -> None:
    """Goes on only if all ranks hold the same graph. Collective.

    Raises:
      WrongType: this rank's is no graph over the numbers below `size`.
      InvalidArgument: another rank's is none; or they differ: names the first edge on which a rank and rank 0 do.
    """
    complaint, mine = _complaint_about(graph, size, name), []
    try:
        mine = [] if complaint else _edges_of(graph)
    except (TypeError, ValueError) as error:
        complaint = WrongType(f"{name}: an edge's weight is no number: {error}")
    agree(communicator, complaint)
    text = json.dumps([bool(is_weighted), mine]).encode()
    theirs = text_of_rank0(communicator, text)
    differs: InvalidArgument | None = None
    if theirs != text:
        are_weighted, edges = json.loads(theirs)
        what = _difference(mine, edges, (bool(is_weighted), are_weighted))
        differs = InvalidArgument(f"{name}: {what}; all ranks must give the same")
    agree(communicator, differs)


def _edges_of(graph: DiGraph) -> Edges:
    """Plain numbers: nodes may be NumPy's."""
    edges = sorted(graph.edges(data=True), key=_ends)
    return [[int(i), int(j), float(data.get("weight", 1.0))] for i, j, data in edges]


def _ends(edge: tuple[int, int, Any]) -> tuple[int, int]:
    return edge[:2]


def _difference(mine: Edges, theirs: Edges, weighted: tuple[bool, bool]) -> str:
    own, other = _by_ends(mine), _by_ends(theirs)
    for ends in [*sorted(own.keys() ^ other.keys()), *sorted(own.keys() & other.keys())]:
        if own.get(ends) != other.get(ends):
            weights = f"{_show(own, ends)} here and {_show(other, ends)} on rank 0"
            return f"the edge {ends[0]} -> {ends[1]} has the weight {weights}"
    return f"is_weighted is {weighted[0]} here and {weighted[1]} on rank 0"


def _by_ends(edges: Edges) -> dict[tuple[int, int], float]:
    return {(int(i), int(j)): weight for i, j, weight in edges}


def _show(edges: Mapping[tuple[int, int], float], ends: tuple[int, int]) -> str:
    return f"{edges[ends]:g}" if ends in edges else "none (there is no such edge)"
