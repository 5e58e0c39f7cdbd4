"""Every public name of Bagua 0.9 and of BlueFog is there, under Pelton's packages and under theirs.

api_names.json has a line for each: "module:name", its kind, and the parameters of a function or of a class's methods
as [name, kind, default], with the default as source text (null: none).
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pelton.compat.aliases import PACKAGES
from spawn import environment, run

_TABLES = json.loads((Path(__file__).parent / "api_names.json").read_text())
_PACKAGES = {"bagua": "pelton", "bluefog": "pelton.bluefog"}
_KINDS = {
    "pos": (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD),
    "kw": (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD),
}
Wanted = list[tuple[str, str, str | None]]


def _found(path: str) -> Any:
    module, _, name = path.partition(":")
    package = module.split(".")[0]
    return getattr(importlib.import_module(_PACKAGES[package] + module.removeprefix(package)), name)


def _is_default(given: Any, text: str) -> bool:
    """Whether a default is what the source says, which may name a constant by any path."""
    name = getattr(given, "name", None)  # of an enumerator, in Python or of torch
    if isinstance(name, str):
        return text.rpartition(".")[2] == name
    try:
        return bool(given == eval(text, {}))  # of our own file
    except NameError:
        return getattr(given, "__name__", repr(given)).rpartition(".")[2].strip("'>") == text.rpartition(".")[2]


def _differences(where: str, function: Callable[..., Any], wanted: Wanted) -> Iterator[str]:
    have = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
    by_name = {p.name: (i, p) for i, p in enumerate(have)}
    last = -1
    for name, kind, default in wanted:
        if name in ("self", "cls") or kind not in _KINDS:  # where theirs take *args, ours may name them
            continue
        index, parameter = by_name.get(name, (-1, None))
        if parameter is None:
            yield f"{where}: there is no parameter {name!r}"
        elif parameter.kind not in _KINDS[kind]:
            yield f"{where}: {name!r} is {parameter.kind.description}"
        elif kind == "pos" and index < last:
            yield f"{where}: {name!r} stands too early"
        elif default is not None and parameter.default is parameter.empty:
            yield f"{where}: {name!r} has no default, and is to have {default}"
        elif default is not None and not _is_default(parameter.default, default):
            yield f"{where}: {name!r} is {parameter.default!r} by default, and is to be {default}"
        last = max(last, index) if kind == "pos" else last


def _problems(path: str, entry: dict[str, Any]) -> Iterator[str]:
    thing = _found(path)
    if entry["kind"] == "function":
        yield from _differences(path, thing, entry.get("params", []))
    for attribute in entry.get("attrs", []):
        if not hasattr(thing, attribute):
            yield f"{path}.{attribute}: is missing"
    for method, wanted in entry.get("methods", {}).items():
        if hasattr(thing, method):
            yield from _differences(f"{path}.{method}", getattr(thing, method), wanted)
        else:
            yield f"{path}.{method}: is missing"


@pytest.mark.parametrize("table", _TABLES)
def test_every_name_is_there_with_its_parameters(table: str) -> None:
    problems = [line for path, entry in _TABLES[table].items() for line in _problems(path, entry)]
    assert not problems, "\n".join(problems)


def test_what_differs_is_found() -> None:
    def ours(a: int, b: int = 2, *, c: int = 3) -> None:
        pass

    def differing(*wanted: tuple[str, str, str | None]) -> list[str]:
        return list(_differences("f", ours, list(wanted)))

    assert not differing(("a", "pos", None), ("b", "pos", "2"), ("c", "kw", "1 + 2"))
    assert differing(("d", "pos", None)) == ["f: there is no parameter 'd'"]
    assert differing(("b", "pos", "2"), ("a", "pos", None)) == ["f: 'a' stands too early"]
    assert differing(("a", "pos", "1")) == ["f: 'a' has no default, and is to have 1"]
    assert differing(("b", "pos", "3")) == ["f: 'b' is 2 by default, and is to be 3"]
    assert differing(("c", "pos", "3")) == ["f: 'c' is keyword-only"]


@pytest.mark.parametrize("alias", ["pelton.torch_api", "bagua.torch_api"])
def test_modules_of_baguas_are_found_by_attribute(alias: str) -> None:
    """After `import bagua.torch_api as bagua` alone, as scripts use them."""
    modules = {path.partition(":")[0] for path in _TABLES["bagua"]}
    eager = ("bagua.torch_api.algorithms.", "bagua.torch_api.bucket", "bagua.torch_api.tensor", "bagua.torch_api.env")
    names = sorted(name.removeprefix("bagua.torch_api.") for name in modules if name.startswith(eager))
    assert "algorithms.bytegrad" in names and "env" in names
    script = f"import {alias} as api\nfor name in {names!r}:\n    value = api\n    for part in name.split('.'):\n"
    script += "        value = getattr(value, part)\nprint('found')\n"
    paths = os.pathsep.join([str(PACKAGES), environment()["PYTHONPATH"]])
    outcome = run([sys.executable, "-c", script], 120, {"PYTHONPATH": paths})
    assert (outcome.code, outcome.output) == (0, "found\n"), outcome.errors
