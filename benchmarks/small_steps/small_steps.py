"""Times many small training steps under each algorithm and tells the longest of them.

    tools/bench small_steps [--algorithms NAME ...] [--steps N] [--ranks N] [--limit FACTOR]

A step of a small model takes less than a millisecond, so that a wake-up that is lost, or that comes late, stands out:
the longest step is then hundreds of times the median. Names are those of `tools/bench links train`. The first steps,
in which buffers are made and the order of gradients is agreed on, are not counted. With `--limit` a step longer than
so many medians is an error; the machine must be idle for that to mean anything.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from variants import VARIANTS

RANK_SCRIPT = Path(__file__).with_name("rank.py")
NAMES = tuple(variant.name for variant in VARIANTS if variant.algorithm)


@dataclass(frozen=True)
class Longest:
    """The longest step of all ranks. Threads: a value. Owns: nothing."""

    median_s: float
    longest_s: float
    step: int
    rank: int

    @property
    def factor(self) -> float:
        """How many medians the longest step took."""
        return self.longest_s / self.median_s


def longest_of(reports: list[dict[str, Any]]) -> Longest:
    """Joins what the ranks have measured: the median of their medians, and the longest step of any."""
    slowest = max(reports, key=lambda report: float(report["longest_s"]))
    median = statistics.median(float(report["median_s"]) for report in reports)
    return Longest(median, float(slowest["longest_s"]), int(slowest["step"]), int(slowest["rank"]))


def measure(name: str, steps: int, ranks: int, timeout_s: float) -> Longest:
    """Trains under one algorithm on `ranks` ranks of this machine.

    Raises:
        RuntimeError: the ranks failed, or took longer than `timeout_s`.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pelton_run", "-np", str(ranks), str(RANK_SCRIPT), name, str(steps), folder]
        try:
            done = subprocess.run(command, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as late:
            raise RuntimeError(f"{name}: {ranks} ranks took longer than {timeout_s:.0f} s for {steps} steps") from late
        if done.returncode != 0:
            raise RuntimeError(f"{name}: the ranks ended with status {done.returncode}")
        return longest_of([json.loads(file.read_text()) for file in sorted(Path(folder).iterdir())])


def main() -> int:
    """Prints a row per algorithm; returns 1 where one had a step beyond the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--limit", type=float, default=None, help="the most medians that a step may take")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each algorithm")
    arguments = parser.parse_args()
    print(f"{arguments.ranks} ranks, {arguments.steps} steps each")
    print(f"{'algorithm':<20} {'median':>10} {'longest':>11} {'factor':>8}  at step, rank")
    beyond = []
    for name in arguments.algorithms:
        result = measure(name, arguments.steps, arguments.ranks, arguments.timeout)
        if arguments.limit is not None and result.factor > arguments.limit:
            beyond.append(name)
        print(
            f"{name:<20} {result.median_s * 1e3:>7.3f} ms {result.longest_s * 1e3:>8.1f} ms {result.factor:>8.0f}  "
            f"{result.step}, {result.rank}",
            flush=True,
        )
    if beyond:
        print(f"a step took more than {arguments.limit:g} medians: {', '.join(beyond)}", file=sys.stderr)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
