"""Whether `pelton.autotune` finds the best bucket size: the nets of train_step, in shared memory and over a link.

tools/bench autotune [--rates RATE...] [--ranks N] [--case NAME] [--seconds S]

A rate is "shm" for ranks of one host, else that of a link between hosts (network namespaces) with a rank each, as
"1gbit".
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "links"))

from world import Hosts, lines_of_rank_0  # noqa: E402


def _lines(options: argparse.Namespace, rate: str, command: list[str]) -> list[str]:
    if rate == "shm":
        launcher = [str(pathlib.Path(sys.executable).parent / "pelton"), "run", "-np", str(options.ranks)]
        ended = subprocess.run([*launcher, *command[1:]], stdout=subprocess.PIPE, text=True, check=True)
        return [line[line.index("{") :] for line in ended.stdout.splitlines() if "{" in line]
    with Hosts(options.ranks, rate) as hosts:
        return list(lines_of_rank_0(hosts, range(options.ranks), command))


def _print(rate: str, ranks: int, report: dict[str, object]) -> None:
    medians: dict[str, float] = report["ms"]  # type: ignore[assignment]
    print(f"\n{report['case']}, {ranks} ranks, {rate}: medians of {report['turns']} turns, ms per step")
    print("| " + " | ".join(medians) + " |\n" + "| --- " * len(medians) + "|")
    print("| " + " | ".join(f"{value:.2f}" for value in medians.values()) + " |")
    print(
        f"tuned in {report['rounds']} rounds to {report['tuned_to']}; of the steps of the best by hand, "
        f"{report['best']}: {report['of_best']:.3f} times; of those at the start: {report['of_start']:.3f} times",
        flush=True,
    )


def main() -> None:
    """Prints a table for each rate and net."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="+", default=["shm", "1gbit"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--case", default="", help="only the nets whose name contains this")
    parser.add_argument("--seconds", type=float, default=40.0, help="of measuring, for each net")
    options = parser.parse_args()
    for rate in options.rates:
        command = [sys.executable, str(HERE / "rank.py"), "--seconds", str(options.seconds), "--case", options.case]
        for line in _lines(options, rate, command):
            _print(rate, options.ranks, json.loads(line))


if __name__ == "__main__":
    main()
