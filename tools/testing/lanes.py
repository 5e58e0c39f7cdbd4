"""The lanes, in the order in which they run: what fails fast comes first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tools.testing import turns
from tools.testing.bazel_lane import BazelLane, build
from tools.testing.environment import LOGS, PYTHON, ROOT, Settings, output_base, run
from tools.testing.result import Result

Lane = Callable[[Settings], Result]

# The sanitizers and clang leave out what includes PyTorch's headers: a unit of it takes half a minute to compile,
# and its extension module would need the sanitizer's runtime preloaded into Python.
# In three parts that take about as long.
CORE = ("//core/...", "//algorithms/...")
COMM = ("//comm/...",)
BACKEND = ("//backend/...",)
NATIVE_BACKEND = (*BACKEND, "//proto/...", "//tests/...", "-//tests/accelerator/...")
TESTS_FAILED = 1  # pytest's exit status


@dataclass(frozen=True)
class CommandLane:
    """Commands, each of which is one case."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    timeout_s: float = 600

    def __call__(self, settings: Settings) -> Result:
        """Runs all of them, also after one that fails."""
        result = Result()
        for command in self.commands:
            status = run(command, LOGS / f"{self.name}.log", timeout_s=self.timeout_s, settings=settings)
            result.add(f"{' '.join(command)} (status {status})", succeeded=status == 0)
        return result


@dataclass(frozen=True)
class LaneInTurns:
    """A lane of which a usual run has a part, or nothing."""

    lane: BazelLane
    targets_by_turn: Mapping[int, tuple[str, ...]]

    def __call__(self, settings: Settings) -> Result:
        """Runs what is in this turn, or all."""
        turns = self.targets_by_turn if settings.turn is None else [settings.turn]
        targets = tuple(target for turn in turns for target in self.targets_by_turn[turn])
        return replace(self.lane, targets=targets)(settings)


def python_tests(settings: Settings) -> Result:
    """Pytest over tests/python and tests/network, with real processes."""
    log = LOGS / "python.log"
    pair = build("benchmarks/point_to_point", "wire_pair", log, settings)
    accelerator = build("tests/accelerator", "_accelerator.so", log, settings)
    pytest = [PYTHON, "-m", "pytest", "-q", "-o", f"cache_dir={LOGS}/pytest_cache"]
    built = [f"PELTON_WIRE_PAIR={pair}", f"PELTON_ACCELERATOR={accelerator}"]
    built += [] if settings.turn is None else [f"{turns.VARIABLE}={settings.turn}"]
    command = ["env", *built, *pytest, "tests/python", "tests/network"]

    def attempt(name: str, *options: str) -> tuple[int, Result]:
        report = LOGS / f"{name}.xml"
        timeout_s = 14400 if settings.long else 5400
        status = run([*command, f"--junitxml={report}", *options], log, timeout_s=timeout_s, settings=settings)
        result = Result()
        result.add_junit(report)
        return status, result

    status, result = attempt("python")
    if status == TESTS_FAILED:  # all ran; a session that broke off is a failure whatever passes later
        result.try_again(attempt("python_again", "--last-failed")[1])
    elif status != 0:
        result.add(f"pytest ended with status {status}", succeeded=False)
    return result


def _outside() -> CommandLane:
    """The C++ examples, built by workspaces of their own; that they build and run is the test, not how fast."""
    commands = tuple(
        (f"{ROOT}/examples/{name}/run", str(output_base(f"outside_{name}")), "--copt=-O0")
        for name in ("cpp_runtime", "cpp_train")
    )
    return CommandLane("outside", commands, timeout_s=1200)


def demo(settings: Settings) -> Result:
    """The main job; with three of its algorithms, as the Python tests train with all, or with all of them."""
    few = ("--algorithms", "gradient_allreduce", "async", "power_sgd")
    return CommandLane("demo", (("tools/demo", *(() if settings.long else few)),), timeout_s=1200)(settings)


def _lint() -> CommandLane:
    sources = ("tools", "torch_bindings", "tests/python", "tests/network", "examples/digits")
    return CommandLane(
        "lint",
        (
            (PYTHON, "tools/lint/run"),
            (PYTHON, "-m", "ruff", "check", "."),
            (PYTHON, "-m", "mypy", *sources),
        ),
    )


LANES: dict[str, Lane] = {
    "lint": _lint(),
    "gcc": BazelLane("gcc", ("//...",), own_output_base=False),
    "python": python_tests,
    "clang": LaneInTurns(
        BazelLane("clang", (), ("--config=clang_asan",), ("--define=precompiled=no",), without="noasan"),
        {0: CORE, 1: COMM, 2: NATIVE_BACKEND},
    ),
    "tsan": LaneInTurns(
        BazelLane("tsan", (), ("--config=tsan", "--build_tests_only"), without="notsan"),
        {3: CORE, 4: COMM, 5: BACKEND},
    ),
    "outside": _outside(),
    "demo": demo,
    # What random input breaks once is broken.
    "fuzz": BazelLane("fuzz", ("//tests/fuzz:fuzz",), ("--config=fuzz",), attempts=1),
}
# A group's tracks run beside each other, each track's lanes in turn: Python's tests wait more than they compute, and
# what compiles takes the cores that they leave.
GROUPS = (
    (("lint",), ("gcc",)),
    (("python",), ("clang", "tsan", "outside", "demo")),
    (("fuzz",),),
)
QUICK = ("lint", "gcc", "python")
# The turns of what compiles everything once more; all other lanes are in each.
TURNS = {name: {*lane.targets_by_turn} for name, lane in LANES.items() if isinstance(lane, LaneInTurns)}
TURNS["outside"] = {5}
# Without --long by name only: what they test by chance the others test by examples.
LONG = ("fuzz",)


def usual(turn: int | None) -> list[str]:
    """The lanes of a run without flags, or of one that has all turns."""
    return [name for name in LANES if name not in LONG and (turn is None or turn in TURNS.get(name, {turn}))]


if __name__ == "__main__":
    sys.exit("run tools/test")
