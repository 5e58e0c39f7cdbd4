"""What clang's tools say: layout, and whether a header compiles alone."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tools.lint.source import Finding, Source
from tools.testing.environment import cache

# Headers with PyTorch in them take half a minute each, and the rule on own headers covers them.
_LEFT_OUT = ("torch_bindings/", "third_party/", "benchmarks/")


def check_format(sources: Sequence[Source]) -> list[Finding]:
    """clang-format would change nothing."""
    paths = [source.path for source in sources if source.is_cpp]
    command = ["clang-format", "--dry-run", "--Werror", *paths]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    found = re.findall(r"^(\S+?):(\d+):\d+: error: (.*)$", printed, re.MULTILINE)
    first = {path: Finding(path, int(line), f"{what} (clang-format -i {path})") for path, line, what in reversed(found)}
    return list(first.values())


def check_headers(sources: Sequence[Source]) -> list[Finding]:
    """Headers without a .cc of their own compile alone; for the others, that .cc includes them first (rules).

    What was found tidy is not compiled again until a header changes.
    """
    stamp = cache() / "lint" / "headers"
    key = key_of(sources)
    if stamp.exists() and stamp.read_text() == key:
        return []
    findings = _compile_headers(sources)
    if not findings:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(key)
    return findings


def key_of(sources: Sequence[Source]) -> str:
    """Changes with the compiler, with any header and with the list of files: which headers stand alone."""
    version = subprocess.run(["clang++", "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version)
    for source in sources:
        digest.update(f"{source.path}\n{source.text if source.is_header else ''}\n".encode())
    return digest.hexdigest()


def _compile_headers(sources: Sequence[Source]) -> list[Finding]:
    paths = {source.path for source in sources}
    by_path = {source.path: source for source in sources if source.is_header}
    alone = [
        source.path
        for source in sources
        if source.is_header
        and not source.path.startswith(_LEFT_OUT)
        and source.path[:-2] + ".cc" not in paths
        and not needs_generated(source.path, by_path)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [finding for findings in pool.map(_compile, alone) for finding in findings]


def needs_generated(path: str, headers: dict[str, Source]) -> bool:
    """Whether the header includes, at whatever remove, what the compiler of protocol buffers makes in a build."""
    seen, left = set(), [path]
    while left:
        current = left.pop()
        if current.endswith(".pb.h"):
            return True
        if current in seen or current not in headers:
            continue
        seen.add(current)
        left += re.findall(r'^#include "([^"]+)"', headers[current].text, re.MULTILINE)
    return False


def _compile(path: str) -> Iterable[Finding]:
    command = ["clang++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-unused-parameter", "-I."]
    result = subprocess.run(
        [*command, "-Wno-pragma-once-outside-header", path], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        first = next((line for line in result.stderr.splitlines() if "error:" in line), result.stderr[:200])
        yield Finding(path, 1, f"does not compile alone: {first}")
