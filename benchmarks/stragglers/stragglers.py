"""Times steps of decentralized averaging where one rank is slow, by how peers are chosen.

    tools/bench stragglers [--modes MODE ...] [--seconds S] [--turns N] [--ranks N] [--slow-ms MS] [--work-ms MS]

The last rank's forward pass sleeps for `--slow-ms`, those of the others for `--work-ms`; `none` is each for itself.
Told are the median of the other ranks' median steps, and that of the slow one; the modes take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RANK_SCRIPT = Path(__file__).with_name("rank.py")
MODES = ("none", "shift_one", "random_matching", "avoid_stragglers")


def measure(mode: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Trains once; what each rank has measured, by rank.

    Raises:
        RuntimeError: the ranks failed.
        subprocess.TimeoutExpired: they did not end.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [mode, arguments.seconds, arguments.slow_ms, arguments.work_ms, folder]
        command = [sys.executable, "-m", "pelton_run", "-np", arguments.ranks, RANK_SCRIPT, *words]
        done = subprocess.run([str(word) for word in command], timeout=120 + 10 * arguments.seconds, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{mode}: the ranks ended with status {done.returncode}")
        reports = [json.loads(file.read_text()) for file in Path(folder).iterdir()]
        return sorted(reports, key=lambda report: int(report["rank"]))


def main() -> None:
    """Prints a row per mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--slow-ms", type=float, default=150.0)
    parser.add_argument("--work-ms", type=float, default=5.0)
    arguments = parser.parse_args()
    rows: dict[str, list[list[dict[str, Any]]]] = {mode: [] for mode in arguments.modes}
    for _ in range(arguments.turns):
        for mode in arguments.modes:
            rows[mode].append(measure(mode, arguments))
    print(f"{arguments.ranks} ranks; forward passes of {arguments.work_ms:g} ms, of the last {arguments.slow_ms:g} ms")
    print(f"{'peers':<18} {'step of the others':>20} {'of the slow one':>17}")
    for mode, turns in rows.items():
        others = statistics.median(float(report["median_ms"]) for turn in turns for report in turn[:-1])
        slow = statistics.median(float(turn[-1]["median_ms"]) for turn in turns)
        print(f"{mode:<18} {others:>17.1f} ms {slow:>14.1f} ms", flush=True)


if __name__ == "__main__":
    main()
