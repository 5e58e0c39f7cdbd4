"""Times puts and updates of windows, Pelton's and Open MPI's in turns, in one run.

Ranks are a ring; each puts to the next one, all at once. A peer prints "NAME BYTES MEDIAN_SECONDS MIN_SECONDS" of the
slowest rank. On a busy machine only figures of one run compare.
"""

import argparse
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PELTON = ROOT / "bazel-bin/benchmarks/windows/pelton_peer"
SIZES = [4, 4 << 10, 1 << 20, 16 << 20, 64 << 20]

Turn = dict[tuple[str, int], tuple[float, float]]


def commands(ranks: int, sizes: list[int], folder: pathlib.Path) -> dict[str, list[str]]:
    """The words that start each peer; says which are left out."""
    words = [str(size) for size in sizes]
    peers = {"Pelton": [str(PELTON), str(ranks), *words]}
    if not shutil.which("mpicxx") or not shutil.which("mpirun"):
        print("skipped: Open MPI: mpicxx or mpirun is missing (Debian: libopenmpi-dev openmpi-bin)")
        return peers
    binary = folder / "open_mpi"
    if not binary.exists():
        source = str(HERE / "open_mpi_peer.cc")
        subprocess.run(
            ["mpicxx", "-O3", "-march=native", "-std=c++17", f"-I{ROOT}", source, "-o", str(binary)], check=True
        )
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), str(binary)]
    for kind in ("allocated", "own"):
        peers[f"Open MPI, {kind} memory"] = [*start, kind, *words]
    return peers


def measure(command: list[str]) -> Turn:
    """Medians and minima by what and size."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    rows = [line.split() for line in done.stdout.splitlines()]
    return {(r[0], int(r[1])): (float(r[2]), float(r[3])) for r in rows if len(r) == 4}


def name_of(size: int) -> str:
    """As people say it."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def report(ranks: int, sizes: list[int], turns: dict[str, list[Turn]]) -> None:
    """Medians of the turns' medians, and their ratios."""

    def median(peer: str, what: str, size: int) -> float:
        return statistics.median(turn[what, size][0] for turn in turns[peer])

    others = [peer for peer in turns if peer != "Pelton"]
    print(f"\n{ranks} ranks: median of {len(turns['Pelton'])} turns' medians in microseconds")
    print(f"in brackets over Pelton's: {'; '.join(others) or 'nobody'}")
    print("| bytes | copy | put, share of copy | put | update | put+update |\n" + "| --- " * 6 + "|")
    for size in sizes:
        copy, put = median("Pelton", "copy", size), median("Pelton", "put", size)
        cells = [f"{copy * 1e6:.2f}", f"{copy / put:.0%}"]
        for what in ("put", "update", "put+update"):
            ours = median("Pelton", what, size)
            ratios = [f"{median(peer, what, size) / ours:.1f}x" for peer in others]
            cells.append(f"{ours * 1e6:.2f} ({'; '.join(ratios)})")
        print(f"| {name_of(size)} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Runs all turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for ranks in options.ranks:
            peers = commands(ranks, options.sizes, pathlib.Path(name))
            turns: dict[str, list[Turn]] = {peer: [] for peer in peers}
            for turn in range(options.turns):
                for peer, command in peers.items():
                    print(f"{ranks} ranks, turn {turn + 1}: {peer}", file=sys.stderr)
                    turns[peer].append(measure(command))
            report(ranks, options.sizes, turns)


if __name__ == "__main__":
    main()
