"""Rules on BUILD files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools.lint.source import Finding, Source

# Above a rule with several headers, with the reason: `# Two headers, one library: they name each other.`
_MARK = re.compile(r"headers, one library: \S+")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
_CPP_RULES = frozenset({"cc_library", "cc_test", "cc_binary", "cc_test_suite", "torch_library", "torch_test"})


def check_one_header(source: Source) -> Iterator[Finding]:
    """One library per header, so that a target's dependencies say what it includes.

    A comment `# N headers, one library: reason` in the lines above the rule excuses it.
    """
    if not source.path.endswith(("/BUILD", "/BUILD.bazel")):
        return
    for call in _calls(source):
        headers = next((word.value for word in call.keywords if word.arg == "hdrs"), None)
        if not isinstance(headers, ast.List) or len(headers.elts) < 2:
            continue
        before = source.lines[max(0, call.lineno - 4) : call.lineno - 1]
        if not any(_MARK.search(line) for line in before):
            yield source.at(call.lineno, f"{len(headers.elts)} headers in one library; one each")


def check_default_visibility(source: Source) -> Iterator[Finding]:
    """A package opens itself to all by name only: a library is public because its own line says so."""
    if not source.path.endswith("/BUILD") or source.path.startswith("third_party/"):
        return
    for call in _calls(source):
        if getattr(call.func, "id", "") == "package":
            for word in call.keywords:
                if word.arg == "default_visibility" and "visibility:public" in ast.dump(word.value):
                    yield source.at(call.lineno, "default_visibility is public; name the package group that may see it")


def _calls(source: Source) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.Call):
            yield node


def check_dependencies(sources: Sequence[Source]) -> Iterator[Finding]:
    """A target depends on the library of every header that its files include, as clang's layering_check demands.

    That check needs a build with clang; this one reads, so that it fails first. What a file lists by other means than
    literals (a glob, a list made by a function) is left to clang, and so are headers that rules generate.
    """
    texts = {source.path: source for source in sources if source.is_cpp}
    other_workspaces = {source.folder for source in sources if source.path.endswith("/WORKSPACE")}
    builds = (source for source in sources if source.path.endswith("/BUILD") and source.folder not in other_workspaces)
    targets = [target for build in builds for target in _targets(build, texts)]
    owners: dict[str, set[str]] = {}
    for target in targets:
        for header in target.headers:
            owners.setdefault(header, set()).add(target.label)
    for target in targets:
        for path in target.files & texts.keys():
            for number, line in enumerate(texts[path].lines, 1):
                match = _INCLUDE.match(line)
                header = match.group(1) if match else ""
                exporting = owners.get(header, set())
                if exporting and header not in target.files and not exporting & target.dependencies:
                    label = min(exporting)
                    yield texts[path].at(number, f"{target.label} includes {header} and does not depend on {label}")


@dataclass(frozen=True)
class _Target:
    """A C++ target: its label, the files it compiles, the headers it exports, and the labels it depends on."""

    label: str
    files: frozenset[str]
    headers: frozenset[str]
    dependencies: frozenset[str]


def _targets(build: Source, texts: Mapping[str, Source]) -> Iterator[_Target]:
    for call in _calls(build):
        if getattr(call.func, "id", "") not in _CPP_RULES:
            continue
        words = {word.arg: word.value for word in call.keywords if word.arg}
        name = _literal(words.get("name", call.args[0] if call.args else None))
        lists = {"srcs": [f"{name}.cc"], "hdrs": [f"{name}.h"], "textual_hdrs": [], "deps": []}
        given = {key: _literal(words[key]) for key in lists if key in words}
        if not isinstance(name, str) or not all(isinstance(value, list) for value in given.values()):
            continue
        lists |= {key: list(map(str, value)) for key, value in given.items() if isinstance(value, list)}
        exported = _paths(build.folder, lists["hdrs"] + lists["textual_hdrs"], texts)
        yield _Target(
            label=f"//{build.folder}:{name}",
            files=exported | _paths(build.folder, lists["srcs"], texts),
            headers=exported,
            dependencies=frozenset(_absolute(build.folder, label) for label in [*lists["deps"], f":{name}"]),
        )


def _literal(node: ast.expr | None) -> object:
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None


def _paths(folder: str, names: Iterable[str], texts: Mapping[str, Source]) -> frozenset[str]:
    paths = (name[2:].replace(":", "/") if name.startswith("//") else f"{folder}/{name.lstrip(':')}" for name in names)
    return frozenset(path for path in paths if path in texts)


def _absolute(folder: str, label: str) -> str:
    """The label with its package and its name, which repeats the package's last folder where it is left out."""
    if label.startswith(":"):
        return f"//{folder}{label}"
    return label if ":" in label else f"{label}:{label.rpartition('/')[2]}"
