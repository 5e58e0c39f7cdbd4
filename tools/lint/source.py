"""The files that the rules look at."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

CPP_SUFFIXES = (".h", ".cc", ".cu")
_NOT_OURS = ("bazel-", ".venv", ".git/", "out/", "build/")

_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL,
)


_TEST = re.compile(
    r"_(test|fixture|benchmark|process)\.|/test_|^benchmarks/|^tests/|/(compile_fail|conformance|tests)/"
)


@dataclass(frozen=True)
class Finding:
    """One thing that breaks a rule."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Source:
    """One file: its path from the root, with slashes, and its text."""

    path: str
    text: str

    @property
    def is_cpp(self) -> bool:
        """Whether it is C++ or CUDA."""
        return self.path.endswith(CPP_SUFFIXES)

    @property
    def is_header(self) -> bool:
        """Whether it is a C++ header."""
        return self.path.endswith(".h")

    @property
    def is_test(self) -> bool:
        """Whether it serves tests or benchmarks only."""
        return bool(_TEST.search(self.path))

    @property
    def folder(self) -> str:
        """The package."""
        return str(PurePosixPath(self.path).parent)

    @cached_property
    def lines(self) -> list[str]:
        """Its lines."""
        return self.text.splitlines()

    @cached_property
    def code(self) -> list[str]:
        """Its lines of C++ with comments and the insides of literals blanked out, columns kept."""
        return _TOKEN.sub(_blank, self.text).splitlines()

    def at(self, line: int, message: str) -> Finding:
        """A finding in this file; lines count from 1."""
        return Finding(self.path, line, message)


def _blank(match: re.Match[str]) -> str:
    token = match.group(0)
    if token.startswith("/"):
        return re.sub(r"[^\n]", " ", token)
    return token[0] + re.sub(r"[^\n]", " ", token[1:-1]) + token[-1]


def read_tree(root: Path) -> list[Source]:
    """Every text file of the checkout that git tracks or would track; all files where there is no git."""
    sources = []
    for path in sorted(_paths(root)):
        try:
            sources.append(Source(path, (root / path).read_text(encoding="utf-8")))
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    return sources


def _paths(root: Path) -> Iterable[str]:
    try:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
        return [path for path in listed.split("\0") if path]
    except (OSError, subprocess.CalledProcessError):
        found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
        return [path for path in found if not path.startswith(_NOT_OURS) and "__pycache__" not in path]
