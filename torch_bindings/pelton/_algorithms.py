"""What algorithms there are, with their options: `pelton.algorithm`, `pelton.algorithms` and `pelton algorithms`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pelton import _C

if TYPE_CHECKING:
    from pelton._training.algorithms.base import Algorithm


@dataclass(frozen=True)
class OptionDescription:
    """One option of an algorithm. Threads: a value. Owns: its texts."""

    name: str
    default: str  # as it would be written; "" where it must be given
    values: str  # those that it takes; "" where its meaning says them
    meaning: str  # units included


@dataclass(frozen=True)
class AlgorithmDescription:
    """One algorithm. Threads: a value. Owns: its texts.

    What the runtime alone can say is empty where the algorithm is made of others of the runtime's, phase by phase.
    """

    name: str
    summary: str
    subject: str  # which tensors it communicates, and when
    bytes_sent: str  # by a rank in a round, for a bucket of B bytes on n ranks
    dtypes: tuple[str, ...]
    ranks_agree: bool | None  # whether all ranks hold the same results
    options: tuple[OptionDescription, ...]


def algorithm(name: str, /, **options: Any) -> Algorithm:
    """An algorithm, of Pelton's or registered by a program, for `pelton.wrap` and `with_bagua`.

    Args:
      name: one of `pelton.algorithms()`.
      **options: its own; `pelton algorithms NAME` lists them. Those of a codec are `codec_options={"block": 64}` or
        `**{"codec.block": 64}`; those of a graph likewise.

    Raises:
      InvalidArgument: there is none of that name, or an option is unknown or does not fit; the text lists what there
        is.
    """
    from pelton._training.data_parallel._checked import checked_algorithm

    return checked_algorithm(name, (), options)


def algorithms() -> list[AlgorithmDescription]:
    """All algorithms, by name."""
    from pelton._training.algorithms.base import GlobalAlgorithmRegistry

    return [_describe(name) for name in GlobalAlgorithmRegistry.available_algorithms()]


def _describe(name: str) -> AlgorithmDescription:
    from pelton._training.algorithms.base import GlobalAlgorithmRegistry, NamedAlgorithm

    make: Any
    make, summary = GlobalAlgorithmRegistry.entry(name)
    is_named = inspect.isclass(make) and issubclass(make, NamedAlgorithm)
    runtime = make.runtime_name if is_named else name
    if runtime not in dict(_C.algorithms()) or (is_named and not _takes_options(make)):
        return AlgorithmDescription(name, summary, "", "", (), None, _arguments_of(make))
    told = _C.describe_algorithm(runtime)
    own = _arguments_of(make, make.own_arguments) if is_named else ()
    options = (*own, *(OptionDescription(*option) for option in told["options"]))
    if runtime != name:  # the phases have it from several
        return AlgorithmDescription(name, summary, "", "", (), None, options)
    return AlgorithmDescription(
        name, summary, told["subject"], told["bytes_sent"], tuple(told["dtypes"]), told["ranks_agree"], options
    )


def _takes_options(make: Any) -> bool:
    """Whether a class takes the options of the runtime's table; a user's that is derived from one may not."""
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in inspect.signature(make).parameters.values())


def _arguments_of(make: Any, names: Sequence[str] | None = None) -> tuple[OptionDescription, ...]:
    """What a class is made of beside the runtime's options: those of the names, as its docstring tells of them."""
    meanings = _arguments_in(inspect.getdoc(make.__init__) or "")
    options = []
    for parameter in inspect.signature(make).parameters.values():
        if names is None or parameter.name in names:
            default = "" if parameter.default is inspect.Parameter.empty else str(parameter.default)
            options.append(OptionDescription(parameter.name, default, "", meanings.get(parameter.name, "")))
    return tuple(options)


def _arguments_in(text: str) -> dict[str, str]:
    """What a docstring says of each argument."""
    block = re.search(r"Args:\n(.*?)(?:\n\s*\n|$)", text, re.DOTALL)
    if block is None:
        return {}
    found = re.findall(r"^\s*\**(\w+): (.*?)(?=^\s*\**\w+: |\Z)", block.group(1), re.DOTALL | re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def as_text(description: AlgorithmDescription) -> str:
    """An algorithm on a terminal: a line, and one for each option."""
    lines = [f"{description.name}: {description.summary}"]
    return "\n".join([*lines, *(option_line(option) for option in description.options)])


def option_line(option: OptionDescription) -> str:
    """An option on a terminal."""
    values = f" ({option.values})" if option.values else ""
    default = f" = {option.default}" if option.default else ""
    return f"    {option.name}{default}{values}: {option.meaning}"


def as_markdown() -> str:
    """The page docs/algorithm_options.md."""
    parts = [_HEAD]
    for description in algorithms():
        parts.append(f"## {description.name}\n\n{_sentence(description.summary)}\n")
        if description.subject:
            agree = "the same on all ranks" if description.ranks_agree else "each rank's own"
            parts.append(
                f"- Communicates: {description.subject}.\n- Results: {agree}.\n- Sent by a rank in a round, for a "
                f"bucket of B bytes on n ranks: {description.bytes_sent}.\n"
                f"- Tensors of {', '.join(description.dtypes)}.\n"
            )
        if description.options:
            rows = [f"| `{o.name}` | {_code(o.default)} | {o.values} | {o.meaning} |" for o in description.options]
            parts.append("\n".join(["| option | default | values | meaning |", "| --- | --- | --- | --- |", *rows, ""]))
    return "\n".join(parts)


_HEAD = """# Algorithms and their options

`pelton algorithms --markdown` makes this page of what the algorithms say of themselves;
[algorithms.md](algorithms.md) explains them.
`pelton.algorithm(name, **options)` makes one for `pelton.wrap` and `with_bagua`. An option of the runtime's that is
None has its default.
`codec.<option>` stands for the options of whichever codec it is, which [codecs.md](codecs.md) lists. They are given in
either way: `codec_options={"block": 64}`, or `**{"codec.block": 64}`. So are `graph.<option>` (`graph_options`) and
`base.<option>` (`base_options`).
"""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
