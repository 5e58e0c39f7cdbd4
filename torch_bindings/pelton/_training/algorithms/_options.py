"""Options of the runtime's algorithms: texts by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from pelton.errors import InvalidArgument


def to_text(**values: Any) -> dict[str, str]:
    """The options as the runtime takes them; those that are None are left to its defaults.

    A networkx graph over the ranks from 0 on becomes the graph `given`, with its edges.

    Raises:
      InvalidArgument: a graph is none over such ranks; names what is wrong.
    """
    options: dict[str, str] = {}
    for name, value in values.items():
        if _is_graph(value):
            options.update({name: "given", f"{name}.edges": _edges(name, value)})
        elif value is not None:
            options[name] = _text(value)
    return options


def compression(
    codec: str | None, codec_options: Mapping[str, object] | None, error_feedback: bool | None = None
) -> dict[str, str]:
    """The options of algorithms that encode their messages.

    Args:
      codec: its name; None for the algorithm's default.
      codec_options: of the codec.
      error_feedback: add what a message lacks to the next; None where the codec needs it.
    """
    options = to_text(codec=codec, error_feedback=error_feedback)
    for name, value in (codec_options or {}).items():
        options[f"codec.{name}"] = _text(value)
    return options


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _is_graph(value: object) -> bool:
    """Whether it is networkx's; nobody has such a graph without having imported that."""
    networkx: Any = sys.modules.get("networkx")
    return networkx is not None and isinstance(value, networkx.Graph)


def _edges(name: str, graph: Any) -> str:
    """Its edges as the runtime reads them (comm/graph/graph_text.h); a self-loop is a rank's own weight."""
    size = graph.number_of_nodes()
    if set(graph.nodes) != set(range(size)) or size == 0:
        nodes = sorted(graph.nodes, key=str)[:8]
        raise InvalidArgument(f"{name}: has the nodes {nodes}; must have ranks for nodes, from 0 on, none left out")
    if graph.is_multigraph():
        raise InvalidArgument(f"{name}: a multigraph may have an edge twice; give a networkx.DiGraph")
    weights: dict[tuple[int, int], object] = {}
    for source, target, weight in graph.edges(data="weight"):
        weights[source, target] = weight
        if not graph.is_directed():
            weights[target, source] = weight
    weighted = [ends for ends in sorted(weights) if weights[ends] is not None]
    if not weighted:
        every = {(rank, rank) for rank in range(size)} | weights.keys()
        return " ".join(f"{source}>{target}" for source, target in sorted(every))
    for source, target in sorted(weights.keys() - set(weighted)):
        raise InvalidArgument(
            f"{name}: the edge {source} -> {target} has no weight, and {weighted[0][0]} -> {weighted[0][1]} has one; "
            "give weights to all edges or to none"
        )
    all_weights = {**{(rank, rank): 0.0 for rank in range(size)}, **weights}
    return " ".join(f"{i}>{j}:{_number(name, i, j, all_weights[i, j])}" for i, j in sorted(all_weights))


def _number(name: str, source: int, target: int, weight: Any) -> str:
    try:
        return repr(float(weight))
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{name}: the edge {source} -> {target} has the weight {weight!r}; must be a number"
        ) from None
