"""Average consensus in simulated worlds: how many rounds, how long and how many bytes it takes, by graph and link.

tools/bench graphs [--ranks N...] [--links NAME...] [--graphs NAME...] [--picture FILE.svg]

Every rank starts with 1,000 float64 elements of its own and averages with its neighbours, each at its own pace and in
virtual time: all ranks are in one process. Links are independent of each other, as behind switches that are never the
bottleneck, so that a rank with many neighbours pays for none of them but in bytes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PROGRAM = pathlib.Path("bazel-bin/benchmarks/graphs/consensus")
COUNT = 1000
AIM = 1e-3  # of the error before the first round
ROUNDS = (32, 100)
GRAPHS = (
    "ring",
    "mesh_grid",
    "star",
    "exponential",
    "one_peer_exponential",
    "base",
    "base,peers=3",
    "equi_static",
    "equi_dyn",
)
Link = tuple[str, float, float]
LINKS: dict[str, Link] = {
    "10gbit": ("10 Gb/s, 50 us", 50, 1.25e9),
    "1gbit": ("1 Gb/s, 200 us", 200, 1.25e8),
    "100mbit": ("100 Mb/s, 20 ms", 20000, 1.25e7),
}


@dataclass(frozen=True)
class Course:
    """What became of one world. Threads: a value. Owns: the figures of its rounds."""

    errors: list[float]
    seconds: list[float]  # virtual
    bytes_each: float  # sent by a rank, a round

    @property
    def rounds(self) -> int | None:
        """The first round after which the error is at most AIM."""
        return next((i + 1 for i, error in enumerate(self.errors) if error <= AIM), None)

    def cell(self) -> str:
        """Rounds and time to AIM, else the error that is left."""
        if self.rounds is None:
            return f"{self.errors[-1]:.2g} is left after {len(self.errors)}"
        return f"{self.rounds} rounds, {_duration(self.seconds[self.rounds - 1])}"


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def simulate(graph: str, ranks: int, link: Link, rounds: int) -> Course:
    """One world; raises CalledProcessError where the graph has no such size."""
    command = [str(PROGRAM), graph, str(ranks), str(rounds), str(COUNT), str(link[1]), str(link[2])]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return Course(result["errors"], result["seconds"], result["sent_bytes"] / ranks / rounds)


def course_of(graph: str, ranks: int, link: Link) -> Course:
    """With as many rounds as it takes, up to the most."""
    for rounds in ROUNDS:
        course = simulate(graph, ranks, link, rounds)
        if course.rounds is not None:
            break
    return course


def print_table(ranks: int, links: list[Link], courses: dict[tuple[str, str], Course]) -> None:
    """A row per graph, a column per link."""
    print(f"\n{ranks} ranks, until the error is {AIM:g} of what it was")
    print("| graph | " + " | ".join(name for name, _, _ in links) + " | kB sent by a rank a round |")
    print("| --- " * (len(links) + 2) + "|")
    for graph in dict.fromkeys(graph for graph, _ in courses):
        cells = [courses[graph, name] for name, _, _ in links]
        row = " | ".join(course.cell() for course in cells)
        print(f"| `{graph}` | {row} | {cells[0].bytes_each / 1e3:.1f} |", flush=True)


def draw(courses: dict[tuple[int, str, str], Course], link: Link, path: pathlib.Path) -> None:
    """A panel per number of ranks: the error over the rounds, a line per graph."""
    sizes = sorted({ranks for ranks, _, _ in courses})
    figure, axes = plt.subplots(1, len(sizes), figsize=(4 * len(sizes), 3.6), squeeze=False, sharey=True)
    for axis, ranks in zip(axes.flat, sizes, strict=True):
        for graph in dict.fromkeys(graph for _, graph, _ in courses):
            errors = courses[ranks, graph, link[0]].errors
            axis.semilogy(range(1, len(errors) + 1), [max(error, 1e-16) for error in errors], label=graph)
        axis.set_title(f"{ranks} ranks")
        axis.set_xlim(0, 60)
        axis.grid(which="both", alpha=0.2)
    axes.flat[0].set_ylabel("error, of what it was")
    axes.flat[-1].legend(fontsize="small")
    figure.supxlabel("rounds")
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 100, 1024, 10000])
    parser.add_argument("--links", nargs="+", choices=list(LINKS), default=list(LINKS))
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    parser.add_argument("--picture", type=pathlib.Path, default=pathlib.Path("graphs.svg"))
    arguments = parser.parse_args()
    links = [LINKS[name] for name in arguments.links]
    courses: dict[tuple[int, str, str], Course] = {}
    for ranks in arguments.ranks:
        began = time.monotonic()
        for graph in arguments.graphs:
            for link in links:
                courses[ranks, graph, link[0]] = course_of(graph, ranks, link)
            print(f"{ranks} ranks: {graph} is done", file=sys.stderr, flush=True)
        print_table(ranks, links, {(graph, link): course for (n, graph, link), course in courses.items() if n == ranks})
        print(f"in {time.monotonic() - began:.0f} s", flush=True)
    draw(courses, links[0], arguments.picture)
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    print(f"the largest process took {most:.2f} GB; the picture is {arguments.picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
