"""Rules on classes: what their names must not be, and what their comments must say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.lint.source import Finding, Source

BANNED_WORDS = ("Manager", "Helper", "Util", "Utils", "Handler", "Data", "Info")
_CLASS = re.compile(
    r"^(?P<indent>\s*)(?:template\s*<.*>\s*)?(?P<kind>class|struct)\s+(?:alignas\([^)]*\)\s*|[A-Z_]+\([^)]*\)\s*|[A-Z]+_[A-Z_]+\s+|\[\[\w+\]\]\s*)*"
    r"(?P<name>[A-Z]\w*)(?P<rest>\s*(final\s*)?(:[^:;].*)?\{?.*)$"
)
_NAMESPACE = re.compile(r"(?:inline )?namespace(?: ([\w:]+))? \{$")
_WORD = re.compile(r"[A-Z][a-z0-9]*")


@dataclass(frozen=True)
class Declaration:
    """A class as it stands in a file; `line` counts from 1."""

    kind: str
    name: str
    line: int
    indent: int


def declarations(source: Source) -> Iterator[Declaration]:
    """Definitions of classes and structs; forward declarations and specialisations are none."""
    for number, line in enumerate(source.code, 1):
        match = _CLASS.match(line)
        if match is None or (line.rstrip().endswith(";") and "{" not in line) or match["rest"].startswith("<"):
            continue
        yield Declaration(match["kind"], match["name"], number, len(match["indent"]))


def check_names(source: Source) -> Iterator[Finding]:
    """No word that could stand for anything."""
    if not source.is_cpp:
        return
    for declaration in declarations(source):
        for word in _WORD.findall(declaration.name):
            if word in BANNED_WORDS:
                yield source.at(declaration.line, f"class {declaration.name}: '{word}' says nothing; name what it does")


def check_contracts(source: Source) -> Iterator[Finding]:
    """Every class of a header says who may call it and what it owns.

    Exempt are structs without virtual methods (records and traits), classes nested in another one, whose comment
    covers them, namespaces `internal`, and what serves tests only.
    """
    if not source.is_header or source.is_test:
        return
    internal = _internal_lines(source)
    for declaration in declarations(source):
        if declaration.indent > 0 or declaration.line in internal:
            continue
        if declaration.kind == "struct" and "virtual" not in _body(source, declaration):
            continue
        comment = _comment_before(source, declaration)
        for label in ("Threads", "Owns"):
            if not re.search(rf"\b{label}\b[\w ,]*:", comment):
                yield source.at(declaration.line, f"the comment of {declaration.name} has no `{label}:` sentence")


def check_one_definition(sources: Sequence[Source]) -> Iterator[Finding]:
    """No two classes of one namespace have one name: what is inline or made of a template would be that of either, in
    any program that has both, without a word of the compiler or the linker.

    Classes in namespaces without a name are a file's own, and so are those of programs, in .cc files with `int main`,
    and of what is not to compile.
    """
    first: dict[str, tuple[Source, Declaration]] = {}
    for source in sources:
        if (
            not source.is_cpp
            or "/compile_fail/" in source.path
            or any(line.startswith("int main(") for line in source.code)
        ):
            continue
        for declaration, namespace in _with_namespaces(source):
            name = f"{namespace}::{declaration.name}"
            other, _ = first.setdefault(name, (source, declaration))
            if other.path != source.path:
                yield source.at(declaration.line, f"{other.path} has a class {name}, too; rename one of them")


def _with_namespaces(source: Source) -> Iterator[tuple[Declaration, str]]:
    """Classes that are not nested and not in a namespace without a name, with the namespace's name."""
    by_line = {declaration.line: declaration for declaration in declarations(source) if declaration.indent == 0}
    namespaces: list[str] = []
    for number, line in enumerate(source.lines, 1):
        if match := _NAMESPACE.match(line):
            namespaces.append(match[1] or "")
        elif line.startswith("}  // namespace") and namespaces:
            namespaces.pop()
        elif number in by_line and "" not in namespaces and "::" not in line.split(by_line[number].name, 1)[1][:2]:
            yield by_line[number], "::".join(namespaces)


def _comment_before(source: Source, declaration: Declaration) -> str:
    index = declaration.line - 2
    while index >= 0 and re.match(r"^\s*(template\b|requires\b|concept\b|[^/]*>\s*$)", source.lines[index]):
        index -= 1
    block = []
    while index >= 0 and source.lines[index].lstrip().startswith("//"):
        block.append(source.lines[index].lstrip(" /"))
        index -= 1
    return " ".join(reversed(block))


def _body(source: Source, declaration: Declaration) -> str:
    body, depth = [], 0
    for line in source.code[declaration.line - 1 :]:
        depth += line.count("{") - line.count("}")
        body.append(line)
        if depth <= 0 and ("}" in line or ";" in line):
            break
    return "\n".join(body)


def _internal_lines(source: Source) -> frozenset[int]:
    inside, lines = False, set()
    for number, line in enumerate(source.lines, 1):
        if re.match(r"namespace [\w:]*internal \{", line):
            inside = True
        elif re.match(r"\}  // namespace [\w:]*internal$", line):
            inside = False
        if inside:
            lines.add(number)
    return frozenset(lines)
