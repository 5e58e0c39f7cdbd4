"""Pelton over links between hosts (network namespaces), in turns with its peers.

    tools/bench links train [--rates RATE...] [--variants NAME...] [--steps N]
    tools/bench links collectives [--rates RATE...] [--hosts N] [--ranks-per-host N] [--sizes BYTES...]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "collectives")]

from report import Figures, draw, print_table  # noqa: E402
from world import Hosts, lines_of_rank_0  # noqa: E402

from tests.network.hosts import NotPermitted  # noqa: E402

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]


def train(options: argparse.Namespace, rate: str) -> None:
    """Prints steps per second of every variant at `rate`, and how much faster than DDP."""
    command = [sys.executable, str(HERE / "train.py"), "--steps", str(options.steps)]
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
    ddp = next((report["ms"] for report in reports if report["variant"] == "ddp"), None)
    print(f"\n{options.hosts} hosts x {options.ranks_per_host} ranks, {rate}: medians")
    print("| variant | ms per step | times DDP | final loss | MB sent per step |\n" + "| --- " * 5 + "|")
    for report in reports:
        times = f"{ddp / report['ms']:.2f}" if ddp else "-"
        sent = f"{report['sent_bytes'] / 1e6:.2f}" if report["sent_bytes"] is not None else "-"
        cells = (report["variant"], f"{report['ms']:.1f}", times, f"{report['final_loss']:.3f}", sent)
        print("| " + " | ".join(cells) + " |", flush=True)


def collectives(options: argparse.Namespace, rate: str) -> None:
    """Prints microseconds of the operations under Pelton and gloo, and draws them."""
    script = HERE.parent / "collectives" / "rank.py"
    command = [sys.executable, str(script), "--turns", str(options.turns), "--sizes", *map(str, options.sizes)]
    command += ["--operations", *options.operations]
    host_of = [host for host in range(options.hosts) for _ in range(options.ranks_per_host)]
    figures: Figures = {}
    with Hosts(options.hosts, None if rate == "none" else rate) as hosts:
        for line in lines_of_rank_0(hosts, host_of, command):
            operation, size, side, seconds = line.split()
            figures[operation, int(size), side] = float(seconds)
            print(f"\r{rate}: {len(figures) // 2} operations timed", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    title = f"{options.hosts} hosts x {options.ranks_per_host} ranks, {rate}"
    print_table(title, figures)
    draw(title, figures, options.picture.with_stem(f"{options.picture.stem}_{rate}"))


def main() -> None:
    """Runs one comparison at each rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("train", "collectives"))
    parser.add_argument("--rates", nargs="+", default=["10gbit", "1gbit", "100mbit"])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--variants", nargs="*", default=[])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--operations", nargs="+", default=["allreduce"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--picture", type=pathlib.Path, default=pathlib.Path("out/links.png"))
    options = parser.parse_args()
    for rate in options.rates:
        try:
            (train if options.what == "train" else collectives)(options, rate)
        except NotPermitted as reason:
            print(f"skipped: namespaces are not permitted here: {reason}")
            return


if __name__ == "__main__":
    main()
