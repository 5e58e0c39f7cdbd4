"""All rules together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tools.lint import build_files, classes, kinds, layers, pages, size, text, threads
from tools.lint.source import Finding, Source

Rule = Callable[[Source], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    layers.check_includes,
    layers.check_labels,
    layers.check_python_imports,
    size.check_file,
    size.check_functions,
    text.check_calls,
    text.check_guard,
    text.check_places,
    classes.check_names,
    classes.check_contracts,
    build_files.check_one_header,
    build_files.check_default_visibility,
)


def check(sources: Sequence[Source]) -> list[Finding]:
    """What breaks a rule, by file."""
    paths = frozenset(source.path for source in sources)
    findings: list[Finding] = []
    for source in sources:
        for rule in RULES:
            findings += rule(source)
        findings += text.check_own_header_first(source, paths)
    findings += build_files.check_dependencies(sources)
    findings += pages.check_named_files(sources)
    findings += classes.check_one_definition(sources)
    return [*findings, *layers.check_circles(sources), *threads.check(sources), *kinds.check(sources)]
