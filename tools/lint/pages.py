"""Rules on pages: a file of the tree that a page names is there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tools.lint.source import Finding, Source

# A code span that is nothing but a path: `scheduler.h`, `core/round/scheduler.h`.
_FILE = re.compile(r"`([\w./+-]*\w\.(?:h|cc|cu|py|proto|sh|bzl|md))`")
# Decisions keep the names that files had when they were made.
_HISTORY = "docs/decisions/"


def _is_page(path: str) -> bool:
    return path == "README.md" or (path.startswith("docs/") and path.endswith(".md") and not path.startswith(_HISTORY))


def check_named_files(sources: Sequence[Source]) -> Iterator[Finding]:
    """Some file of the tree is, or ends with, each path in backticks on docs' pages and in README.md."""
    ends = {end for source in sources for end in _ends_of(source.path)}
    for source in sources:
        if not _is_page(source.path):
            continue
        for number, line in enumerate(source.lines, 1):
            for name in _FILE.findall(line):
                if name not in ends:
                    yield source.at(number, f"`{name}` is no file of the tree: name the file that has its contents now")


def _ends_of(path: str) -> Iterator[str]:
    parts = path.split("/")
    for first in range(len(parts)):
        yield "/".join(parts[first:])
