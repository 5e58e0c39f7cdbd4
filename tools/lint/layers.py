"""Which folder may know which: the layer table of docs/architecture.md, as data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tools.lint.source import Finding, Source

# What each layer may include and depend on beside itself.
LAYERS: dict[str, frozenset[str]] = {
    "core": frozenset(),
    "proto": frozenset(),
    "comm": frozenset({"core"}),
    "algorithms": frozenset({"core", "comm"}),
    "backend": frozenset({"core", "comm", "algorithms", "proto"}),
    "torch_bindings": frozenset({"core", "comm", "algorithms", "backend"}),
    "tools": frozenset({"core", "comm", "algorithms", "backend"}),
    "benchmarks": frozenset({"core", "comm", "algorithms", "backend", "torch_bindings"}),
    "tests": frozenset({"core", "comm", "algorithms", "backend", "torch_bindings", "proto", "tools"}),
    "examples": frozenset({"core", "comm", "algorithms", "backend", "torch_bindings"}),
}
# A folder that may know what the rest of its layer may not.
EXTRA: dict[str, frozenset[str]] = {"comm/control": frozenset({"proto"})}
# Folders that these layers must not name, tests excepted: an algorithm's test runs over the transports.
HIDDEN: dict[str, tuple[str, ...]] = {"algorithms": ("comm/transport",)}
# A third-party header's beginning, and the folders that may include it.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "torch/": ("torch_bindings/", "tests/accelerator/", "examples/cpp_train/"),
    "ATen/": ("torch_bindings/", "tests/accelerator/"),
    "c10/": ("torch_bindings/", "tests/accelerator/"),
    "pybind11/": ("torch_bindings/",),
    "grpc": ("comm/control/", "backend/", "tests/"),
    "google/protobuf": ("comm/control/", "backend/", "tests/"),
    "openssl/": ("comm/control/", "comm/transport/network/"),
    "hwy/": ("comm/reduction/", "algorithms/codec/"),
    "nccl": ("comm/transport/nccl/",),
    "ucp/": ("comm/transport/ucx/",),
    "ucs/": ("comm/transport/ucx/",),
    "ucm/": ("comm/transport/ucx/",),
    "mpi.h": ("benchmarks/",),
    "caf/": ("benchmarks/",),
    "benchmark/": ("benchmarks/",),
    "cuda": (
        "comm/transport/nccl/",
        "comm/reduction/cuda/",
        "algorithms/codec/",
        "torch_bindings/",
        "core/memory/cuda/",
    ),
}

# The Python package: Bagua's names stand on the rest of it, and change torch's classes when they are imported.
_BAGUAS = "torch_bindings/pelton/torch_api/"
_MAY_IMPORT_BAGUAS = (_BAGUAS, "torch_bindings/pelton/compat/", "torch_bindings/pelton/script/")
_PYTHON_IMPORT = re.compile(r"^\s*(?:from|import) pelton\.torch_api\b|^\s*from pelton import .*\btorch_api\b")

_INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')
_LABEL = re.compile(r'"//([a-z_]+)((?:/[\w./]+)?)(?::[\w.]+)?"')


def check_includes(source: Source) -> Iterator[Finding]:
    """#include lines against the table."""
    if not source.is_cpp:
        return
    for number, line in enumerate(source.lines, 1):
        match = _INCLUDE.match(line)
        if match is None:
            continue
        header = match.group(1)
        yield from _check_edge(source, number, header)
        for prefix, folders in THIRD_PARTY.items():
            if header.startswith(prefix) and not source.path.startswith(folders):
                yield source.at(number, f"<{header}> may be included only in {', '.join(folders)}")


def check_python_imports(source: Source) -> Iterator[Finding]:
    """Whatever is not Bagua's leaves torch's classes as they are, because it imports nothing that changes them."""
    if not source.path.startswith("torch_bindings/pelton/") or source.path.startswith(_MAY_IMPORT_BAGUAS):
        return
    for number, line in enumerate(source.lines, 1):
        if _PYTHON_IMPORT.match(line):
            yield source.at(
                number, "imports pelton.torch_api, which changes torch's classes: what it needs is of _training"
            )


def check_circles(sources: Sequence[Source]) -> Iterator[Finding]:
    """No two folders of a layer below backend include one another, because they would be one room.

    Tests are excepted, and so are a folder and one inside it, which are one room.
    """
    first: dict[tuple[str, str], Finding] = {}
    for source in sources:
        if not source.is_cpp or source.is_test or source.path.split("/")[0] not in ("core", "comm", "algorithms"):
            continue
        for number, line in enumerate(source.lines, 1):
            match = _INCLUDE.match(line)
            other = match.group(1).rpartition("/")[0] if match else ""
            if "/" in other and other != source.folder:
                first.setdefault((source.folder, other), source.at(number, f"{source.folder} includes {other}, which"))
    for (folder, other), finding in sorted(first.items()):
        if folder < other and not other.startswith(folder + "/") and (other, folder) in first:
            back = first[other, folder]
            yield Finding(finding.path, finding.line, f"{finding.message} includes {folder} ({back.path}:{back.line})")


def check_labels(source: Source) -> Iterator[Finding]:
    """The labels of a BUILD file against the table, package groups and visibility excepted."""
    if not source.path.endswith("/BUILD"):
        return
    for number, line in enumerate(source.lines, 1):
        if "visibility" in line:
            continue
        for layer, rest in _LABEL.findall(line):
            if layer != "tests" or source.path.split("/")[0] != "tests":
                yield from _check_edge(source, number, f"{layer}{rest}/")


def _check_edge(source: Source, number: int, target: str) -> Iterator[Finding]:
    own, other = source.path.split("/")[0], target.split("/")[0]
    if own not in LAYERS or other not in LAYERS or own == other:
        return
    allowed = LAYERS[own] | EXTRA.get(source.folder, frozenset())
    if other not in allowed:
        yield source.at(
            number, f"{source.folder} may not know {other}/ (allowed: {', '.join(sorted(allowed)) or 'none'})"
        )
    # A BUILD file holds the tests' dependencies too; visibility and the includes say the rest there.
    exempt = source.is_test or source.path.endswith("/BUILD")
    if not exempt and target.startswith(HIDDEN.get(own, ("\0",))):
        yield source.at(number, f"{own} may not know {target}: it works over any transport")
