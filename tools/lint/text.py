"""Rules on lines: header guards, own header first, calls that are not made here, places that are not named here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.lint.source import Finding, Source


@dataclass(frozen=True)
class Ban:
    """A pattern that code must not contain.

    Attributes:
      pattern: searched for in each line, comments and the insides of literals left out.
      why: what to do instead.
      unless: beginnings of paths where it is all right.
      in_tests: whether tests and benchmarks are held to it, too.
      only_tests: whether only they are.
    """

    pattern: str
    why: str
    unless: tuple[str, ...] = ()
    in_tests: bool = True
    only_tests: bool = False


BANS = (
    Ban(
        r"\bstd::(mutex|recursive_mutex|shared_mutex|condition_variable)\b|\babsl::(Mutex|CondVar)\b",
        "use Mutex and CondVar of core/base/sync.h, with ABSL_GUARDED_BY",
        unless=("core/base/sync.h", "benchmarks/actor/"),
    ),
    Ban(
        r"\b(absl::SleepFor|std::this_thread::sleep_(for|until)|usleep|nanosleep)\b|(?<![\w:.>])sleep\(",
        "no sleeping: wait for what you wait for, with a deadline",
    ),
    Ban(r"(?<![\w:.>])(std::)?s?rand\(", "take randomness from a seeded engine"),
    Ban(
        r"\babsl::(Now|GetCurrentTimeNanos)\(|\bstd::chrono::\w+_clock::now\b|\bgettimeofday\(",
        "take the time from a Clock (core/base/clock.h)",
        # A deadline of the wall clock would move with it; gRPC's clean-up takes no other.
        unless=(
            "core/base/clock",
            "core/base/test_wall_clock_step",
            "core/trace/",
            "comm/control/coordinator_server.cc",
            "comm/control/test_certificates",
        ),
        in_tests=False,
    ),
    Ban(r"\busing\s+namespace\b", "name what you use"),
    Ban(
        r"(?<![\w.>])(std::)?(printf|puts|putchar)\(|\bstd::(cout|cerr|clog)\b",
        "a library does not print: return a Status, or record it in core/trace",
        unless=("tools/", "examples/"),
        in_tests=False,
    ),
    Ban(r"\.detach\(\)|->detach\(\)", "join every thread", unless=("torch_bindings/",)),
    Ban(
        r"\bstd::(future|promise|async)\b",
        "use Promise and Future of core/actor, whose waits have deadlines",
        unless=("benchmarks/",),
    ),
    Ban(
        r"(?<!\w)throw\s+[\w:]",
        "no exceptions below torch_bindings",
        unless=("torch_bindings/", "core/actor/", "benchmarks/"),
        in_tests=False,
    ),
    Ban(
        r"\b(GTEST_SKIP|DISABLED_\w+)",
        "a test that cannot run here is not a passed test: make it run, or tag its target",
        only_tests=True,
    ),
)
ALLOW = re.compile(r"//\s*(NOLINT|ALLOW)\b[^:]*:\s*\S+")

# Split, so that this file does not name what it forbids.
_REGISTRIES = "|".join(re.escape(name) for name in ("pypi." + "org", "pythonhosted" + ".org", "crates." + "io"))
_MACHINE_PATH = re.compile(r"(?<![\w./$}*-])/(root|home|work)/[\w.-]")
_REGISTRY = re.compile(_REGISTRIES)


def check_calls(source: Source) -> Iterator[Finding]:
    """BANS. `// ALLOW: reason` on the line or the one before excuses it."""
    if not source.is_cpp:
        return
    for ban in BANS:
        if source.path.startswith(ban.unless or "\0") or (source.is_test and not ban.in_tests):
            continue
        if ban.only_tests and not source.is_test:
            continue
        for number, line in enumerate(source.code, 1):
            match = re.search(ban.pattern, line)
            if match and not any(ALLOW.search(near) for near in source.lines[max(0, number - 2) : number]):
                yield source.at(number, f"`{match.group(0).strip()}`: {ban.why}")


def check_guard(source: Source) -> Iterator[Finding]:
    """#ifndef, #define and #endif carry the name made of the path."""
    if not source.is_header:
        return
    guard = "PELTON_" + re.sub(r"\W", "_", source.path).upper() + "_"
    begin = r"^#ifndef (\S+)\n#define (\S+)$"
    if source.path.endswith("-inl.h"):  # included once per instruction set: Highway's toggle
        begin = r"^#if defined\((\S+)\) == defined\(HWY_TARGET_TOGGLE\)\n#ifdef (\S+)$"
    found = re.search(begin, source.text, re.MULTILINE)
    if not found or found.group(1) != guard or found.group(2) != guard:
        yield source.at(1, f"the header guard must be {guard}")
    if not source.text.rstrip().endswith(f"#endif  // {guard}"):
        yield source.at(len(source.lines), f"must end with `#endif  // {guard}`")


def check_own_header_first(source: Source, paths: frozenset[str]) -> Iterator[Finding]:
    """x.cc includes x.h before anything else, which proves that x.h stands alone."""
    own = re.sub(r"(_test)?\.(cc|cu)$", ".h", source.path)
    if not source.path.endswith((".cc", ".cu")) or source.is_test or own not in paths:
        return
    first = next((line for line in source.lines if line.startswith("#include")), "")
    if f'"{own}"' not in first:
        yield source.at(1, f'#include "{own}" must come first')


def check_places(source: Source) -> Iterator[Finding]:
    """No path of one machine and no package registry is written into the tree."""
    for number, line in enumerate(source.lines, 1):
        if _MACHINE_PATH.search(line):
            yield source.at(number, "names a path of one machine")
        if _REGISTRY.search(line):
            yield source.at(number, "names a package registry")
