"""What algorithms there are, with their options: `pelton.algorithm`, `pelton.algorithms` and `pelton algorithms`."""

from __future__ import annotations

import inspect
import re
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
      **options: its own; `pelton algorithms NAME` lists them.

    Raises:
      InvalidArgument: there is none of that name, or an option is unknown or does not fit; the text lists what there
        is.
    """
    from pelton._training.algorithms._options import to_text
    from pelton._training.algorithms.base import RuntimeAlgorithm
    from pelton._training.data_parallel._checked import checked_algorithm

    made = checked_algorithm(name, (), options)
    if isinstance(made, RuntimeAlgorithm):
        _C.check_algorithm(name, to_text(**options))
    elif name in dict(_C.algorithms()):  # the class has taken them; values may be out of range
        _C.check_algorithm(name, _as_runtime_takes_them(name, options))
    return made


def _as_runtime_takes_them(name: str, options: dict[str, Any]) -> dict[str, str]:
    """Those options of a class that the runtime's algorithm of the same name has."""
    from pelton._training.algorithms._options import compression, to_text

    known = {option[0] for option in _C.describe_algorithm(name)["options"]}
    plain = to_text(**{n: v for n, v in options.items() if n in known and _is_plain(v)})
    if "codec" not in known:
        return plain
    encoding = (options.get(option) for option in ("codec", "codec_options", "error_feedback"))
    return {**plain, **compression(*encoding)}


def algorithms() -> list[AlgorithmDescription]:
    """All algorithms, by name."""
    from pelton._training.algorithms.base import GlobalAlgorithmRegistry

    return [_describe(name) for name in GlobalAlgorithmRegistry.available_algorithms()]


def _describe(name: str) -> AlgorithmDescription:
    from pelton._training.algorithms.base import GlobalAlgorithmRegistry

    make, summary = GlobalAlgorithmRegistry.entry(name)
    if name not in dict(_C.algorithms()):
        return AlgorithmDescription(name, summary, "", "", (), None, _options_of(make, {}))
    told = _C.describe_algorithm(name)
    of_runtime = {option[0]: OptionDescription(*option) for option in told["options"]}
    options = _options_of(make, of_runtime) if inspect.isclass(make) else tuple(of_runtime.values())
    return AlgorithmDescription(
        name, summary, told["subject"], told["bytes_sent"], tuple(told["dtypes"]), told["ranks_agree"], options
    )


def _options_of(make: Any, of_runtime: dict[str, OptionDescription]) -> tuple[OptionDescription, ...]:
    """The arguments of a class, told of by the runtime or, where it does not know them, by the class."""
    meanings = _arguments_in(inspect.getdoc(make.__init__) or "")
    options = []
    for parameter in inspect.signature(make).parameters.values():
        known = of_runtime.get(parameter.name, OptionDescription(parameter.name, "", "", ""))
        default = known.default
        if parameter.default is not inspect.Parameter.empty and (parameter.default is not None or not default):
            default = str(parameter.default)
        meaning = known.meaning or meanings.get(parameter.name, "")
        options.append(OptionDescription(parameter.name, default, known.values, meaning))
    return tuple(options)


def _arguments_in(text: str) -> dict[str, str]:
    """What a docstring says of each argument."""
    block = re.search(r"Args:\n(.*?)(?:\n\s*\n|$)", text, re.DOTALL)
    if block is None:
        return {}
    found = re.findall(r"^\s*(\w+): (.*?)(?=^\s*\w+: |\Z)", block.group(1), re.DOTALL | re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def _is_plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str))


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
`pelton.algorithm(name, **options)` makes one for `pelton.wrap` and `with_bagua`.
"""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
