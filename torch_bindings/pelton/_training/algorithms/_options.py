"""Options of the runtime's algorithms: texts by name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pelton import _C
from pelton.errors import InvalidArgument

_MAPPING = "_options"  # ends the name of an option that holds another one's own options


def to_text(**values: Any) -> dict[str, str]:
    """The options as the runtime takes them; those that are None are left to its defaults.

    `codec_options={"block": 64}` is the same as `**{"codec.block": 64}`; so it is with whatever option has options of
    its own. A networkx graph over the ranks from 0 on becomes the graph `given`, with its edges.

    Raises:
      InvalidArgument: an option is given in both ways, `codec_options` is no mapping, or a graph is none over such
        ranks; names what is wrong.
    """
    options: dict[str, str] = {}
    for name, value in values.items():
        for key, text in _texts(name, value):
            if key in options:
                raise InvalidArgument(f"{key}: is given twice, the second time by {name}; give it once")
            options[key] = text
    return options


@functools.cache
def defaults_of(name: str) -> Mapping[str, str]:
    """The defaults of an algorithm of the runtime's, by option, as the runtime writes them.

    Args:
      name: of the algorithm.

    Raises:
      LookupError: there is none of that name.
    """
    return {option[0]: option[1] for option in _C.describe_algorithm(name)["options"]}


@functools.cache
def _flags_of(name: str) -> frozenset[str]:
    """The options that are true or false."""
    return frozenset(option[0] for option in _C.describe_algorithm(name)["options"] if option[2] == "true or false")


def checked_texts(name: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The options of an algorithm of the runtime's, as that takes them. A flag may be a number, or numpy's.

    Raises:
      InvalidArgument: an option is unknown, or its value does not fit; the text lists what there is.
    """
    flags = _flags_of(name) if name in dict(_C.algorithms()) else frozenset()
    is_flag = {key: key in flags and value is not None and not isinstance(value, str) for key, value in options.items()}
    texts = to_text(**{key: bool(value) if is_flag[key] else value for key, value in options.items()})
    _C.check_algorithm(name, texts)
    return texts


def kept(value: Any) -> Any:
    """A value that does not change with what was given."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.copy() if _is_graph(value) else value


def value_of(text: str) -> Any:
    """A default as Python has it; None where the runtime's is no value of its own."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text if text.isidentifier() and text != "auto" else None


def text_of(value: object) -> str:
    """A value as the runtime writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if name.endswith(_MAPPING):
        if not isinstance(value, Mapping):
            raise InvalidArgument(f"{name}: must be a mapping, from an option's name to its value, is {value!r}")
        prefix = name.removesuffix(_MAPPING)
        yield from ((f"{prefix}.{key}", text_of(each)) for key, each in value.items())
    elif _is_graph(value):
        yield from ((name, "given"), (f"{name}.edges", _edges(name, value)))
    else:
        yield name, text_of(value)


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
