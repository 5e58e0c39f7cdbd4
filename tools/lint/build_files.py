"""Rules on BUILD files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.lint.source import Finding, Source

# Above a rule with several headers, with the reason: `# Two headers, one library: they name each other.`
_MARK = re.compile(r"headers, one library: \S+")


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
