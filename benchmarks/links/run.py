"""Pelton over links between hosts (network namespaces), in turns with its peers.

tools/bench links train [--rates RATE...] [--variants NAME...] [--steps N]
tools/bench links collectives [--rates RATE...] [--hosts N] [--ranks-per-host N] [--sizes BYTES...]
tools/bench links hierarchy [--rates RATE...] [--hosts N] [--ranks-per-host N] [--sizes BYTES...]
tools/bench links tune [--rates RATE...] [--hosts N] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "collectives"), str(HERE.parent / "point_to_point")]

from open_mpi import build, time_open_mpi  # noqa: E402
from raw_tcp import SIZE as RAW_SIZE  # noqa: E402
from raw_tcp import time_raw  # noqa: E402
from report import Figures, draw, name_of, print_table  # noqa: E402
from world import Hosts, lines_of_rank_0  # noqa: E402

from tests.network.hosts import NotPermitted  # noqa: E402

OPEN_MPI, HIERARCHICAL = "open mpi", "hierarchical"
FLAT = ("ring", "halving_doubling", "recursive_doubling", "pairwise")
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]


def train(options: argparse.Namespace, rate: str) -> None:
    """Prints steps per second of every variant at `rate`, and how much faster than DDP."""
    command = [sys.executable, str(HERE / "train.py"), "--steps", str(options.steps)]
    command += ["--case", options.case, "--turn", str(options.turn)]
    if options.variants:
        command += ["--variants", *options.variants]
    host_of = [host for host in range(options.hosts) for _ in range(options.ranks_per_host)]
    reports = []
    with Hosts(options.hosts, None if rate == "none" else rate) as hosts:
        for line in lines_of_rank_0(hosts, host_of, command):
            report = json.loads(line)
            if "variant" in report:
                reports.append(report)
            else:
                print(f"\r{rate}: {report['steps']} of {options.steps} steps", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"\n{options.case}, {options.hosts} hosts x {options.ranks_per_host} ranks, {rate}: medians")
    titles = ("variant", "ms per step", "times DDP", "its quartiles", "CPU ms", "final loss", "MB sent per step")
    print("| " + " | ".join(titles) + " |\n" + "| --- " * len(titles) + "|")
    by_name = {report["variant"]: report for report in reports}
    for report in reports:
        peer = by_name.get(report["peer"])
        print("| " + " | ".join(_training_cells(report, peer)) + " |", flush=True)


def _training_cells(report: dict[str, Any], peer: dict[str, Any] | None) -> list[str]:
    """Of one variant; compared with its peer turn by turn, as a neighbour's load falls on both sides of a turn."""
    times = [theirs / own for own, theirs in zip(report["ms"], peer["ms"])] if peer is not None else []
    low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else [float("nan")] * 3
    return [
        report["variant"],
        f"{statistics.median(report['ms']):.1f}",
        f"{middle:.2f}" if times else "-",
        f"{low:.2f}-{high:.2f}" if times else "-",
        f"{statistics.median(report['cpu_ms']):.1f}",
        f"{report['final_loss']:.3f}",
        f"{report['sent_bytes'] / 1e6:.2f}" if report["sent_bytes"] is not None else "-",
    ]


def collectives(options: argparse.Namespace, rate: str) -> None:
    """Prints microseconds of the operations under Pelton, gloo and Open MPI (allreduce), and draws them."""
    script = HERE.parent / "collectives" / "rank.py"
    command = [sys.executable, str(script), "--turns", str(options.turns), "--sizes", *map(str, options.sizes)]
    command += ["--operations", *options.operations]
    host_of = [host for host in range(options.hosts) for _ in range(options.ranks_per_host)]
    samples: dict[tuple[str, int, str], list[float]] = {}
    raw = []
    with tempfile.TemporaryDirectory() as folder, Hosts(options.hosts, None if rate == "none" else rate) as hosts:
        program = build(pathlib.Path(folder)) if "allreduce" in options.operations else None
        for repetition in range(options.repetitions):
            print(f"{rate}: repetition {repetition + 1} of {options.repetitions}", file=sys.stderr, flush=True)
            raw.append(time_raw(hosts, 3))
            for line in lines_of_rank_0(hosts, host_of, command):
                operation, size, side, seconds = line.split()
                samples.setdefault((operation, int(size), side), []).append(float(seconds))
            if program is not None:
                taken = time_open_mpi(program, hosts, host_of, options.sizes, 1.0)
                for bytes_, seconds_ in taken.items():
                    samples.setdefault(("allreduce", bytes_, OPEN_MPI), []).append(seconds_)
    figures = {key: statistics.median(values) for key, values in samples.items()}
    title = f"{options.hosts} hosts x {options.ranks_per_host} ranks, {rate}"
    print_table(title, figures)
    if program is not None:
        print_table(title, {key: value for key, value in figures.items() if key[0] == "allreduce"}, OPEN_MPI)
    print_share_of_raw(figures, len(host_of), statistics.median(raw))
    draw(title, figures, options.picture.with_stem(f"{options.picture.stem}_{rate}_{options.ranks_per_host}"))


def print_share_of_raw(figures: Figures, ranks: int, seconds: float) -> None:
    """The bus bandwidth of the largest allreduce, 2 (n - 1) / n of its bytes per second, against the raw stream's."""
    print(f"\na raw TCP stream: {RAW_SIZE / seconds / 1e6:.1f} MB/s")
    largest = max((size for operation, size, _ in figures if operation == "allreduce"), default=None)
    if largest is None:
        return
    for side in ("pelton", "gloo", OPEN_MPI):
        if (taken := figures.get(("allreduce", largest, side))) is not None:
            speed = 2 * (ranks - 1) / ranks * largest / taken
            share = speed / (RAW_SIZE / seconds)
            print(f"{side}, {name_of(largest)}: bus bandwidth {speed / 1e6:.1f} MB/s, {share:.0%} of it")


def tune(options: argparse.Namespace, rate: str) -> None:
    """Writes the table of the fastest recipes at `rate`, and prints what was measured."""
    path = options.out.with_stem(f"{options.out.stem}_{rate}")
    command = [sys.executable, str(HERE / "tune.py"), "--out", str(path), "--turns", str(options.turns)]
    sizes = sorted(options.sizes)
    command += ["--sizes", *map(str, sizes)]
    with Hosts(options.hosts, None if rate == "none" else rate) as hosts:
        for line in lines_of_rank_0(hosts, range(options.hosts), command):
            report = json.loads(line)
            print(f"\n{report['kind']}, {options.hosts} hosts, {rate}: median microseconds")
            print("| recipe | " + " | ".join(map(name_of, sizes)) + " |\n" + "| --- " * (len(sizes) + 1) + "|")
            for recipe, seconds in report["seconds"].items():
                print(f"| {recipe} | " + " | ".join(f"{s * 1e6:.0f}" for s in seconds) + " |", flush=True)
    print(f"\nwritten: {path}, for PELTON_SCHEDULES\n{path.read_text()}")


def hierarchy(options: argparse.Namespace, rate: str) -> None:
    """Prints milliseconds of an allreduce in the hierarchical form and under each flat recipe, in turns."""
    host_of = [host for host in range(options.hosts) for _ in range(options.ranks_per_host)]
    command = [sys.executable, str(HERE / "allreduce.py"), *map(str, options.sizes)]
    samples: dict[str, dict[int, list[float]]] = {form: {} for form in (HIERARCHICAL, *FLAT)}
    with tempfile.TemporaryDirectory() as folder, Hosts(options.hosts, None if rate == "none" else rate) as hosts:

        def flat(recipe: str) -> Callable[[int], dict[str, str]]:
            table = pathlib.Path(folder) / recipe
            table.write_text(f"allreduce 0 0 {recipe}\n")
            # No two ranks share memory, so all that they say goes over the wire.
            return lambda rank: {"PELTON_HOST_LABEL": f"rank{rank}", "PELTON_SCHEDULES": str(table)}

        for turn in range(options.turns):
            for form, by_size in samples.items():
                print(f"\r{rate}: turn {turn + 1} of {options.turns}, {form:20}", end="", file=sys.stderr, flush=True)
                changes = [] if form == HIERARCHICAL else [flat(form)]
                for line in lines_of_rank_0(hosts, host_of, command, *changes):
                    size, seconds = line.split()
                    by_size.setdefault(int(size), []).append(float(seconds))
    title = f"allreduce, {options.hosts} hosts x {options.ranks_per_host} ranks, {rate}"
    print(f"\n\n{title}: median ms, times hierarchical")
    print("| form | " + " | ".join(map(name_of, options.sizes)) + " |\n" + "| --- " * (len(options.sizes) + 1) + "|")
    medians = {form: [statistics.median(by[size]) for size in options.sizes] for form, by in samples.items()}
    for form, taken in medians.items():
        cells = [f"{own * 1e3:.2f} ({own / best:.2f})" for own, best in zip(taken, medians[HIERARCHICAL])]
        print(f"| {form} | " + " | ".join(cells) + " |", flush=True)


RUNS = {"train": train, "collectives": collectives, "hierarchy": hierarchy, "tune": tune}


def main() -> None:
    """Runs one comparison at each rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=RUNS)
    parser.add_argument("--rates", nargs="+", default=["10gbit", "1gbit", "100mbit"])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turn", type=int, default=5, help="steps of a variant before it is the next one's turn")
    parser.add_argument("--variants", nargs="*", default=[])
    parser.add_argument("--case", default="mlp 25 MB", help="what is trained: of benchmarks/train_step/models.py")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--operations", nargs="+", default=["allreduce"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=2, help="of all sides' jobs, in turns")
    parser.add_argument("--picture", type=pathlib.Path, default=pathlib.Path("out/links.png"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/schedules.txt"))
    options = parser.parse_args()
    for rate in options.rates:
        try:
            RUNS[options.what](options, rate)
        except NotPermitted as reason:
            print(f"skipped: namespaces are not permitted here: {reason}")
            return


if __name__ == "__main__":
    main()
