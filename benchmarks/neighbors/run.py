"""Times averages of a rank and its neighbours, of several libraries in turns, in one run.

Pelton and gloo from Python, blocking; Pelton from C++ too, in memory that the ranks share and in private memory; Open
MPI from C++, MPI_Neighbor_allgather and the weighted sum. gloo has no such operation: what is timed is its mean over
all ranks, and so is Pelton's own beside it. On a busy machine only figures of one run compare.
"""

import argparse
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PELTON = HERE.parents[1] / "bazel-bin/benchmarks/neighbors/pelton_peer"
SIZES = ["4", "4096", "65536", "1048576", "16777216", "67108864"]


def case_of(size: str, scale: float) -> str:
    """With how often it is timed."""
    iterations = 50 if size == "many" else max(8, min(3000, 200_000_000 // max(int(size) * 8, 20_000)))
    return f"{size}:{max(3, int(iterations * scale))}"


def commands(ranks: int, graph: str, cases: list[str], folder: pathlib.Path) -> dict[str, list[str]]:
    """The words that start each peer; says which are left out."""
    python = [sys.executable, "-m", "pelton_run.bfrun", "-np", str(ranks), sys.executable, str(HERE / "rank.py")]
    peers = {
        "Pelton": [*python, "pelton", graph, *cases, case_of("many", 1)],
        "Pelton's allreduce": [*python, "pelton-allreduce", graph, *cases],
        "gloo's allreduce": [*python, "gloo", graph, *cases],
    }
    for memory, peer in (("region", "Pelton, C++, shared"), ("private", "Pelton, C++, private")):
        peers[peer] = [str(PELTON), memory, str(ranks), graph, *cases, case_of("many", 1)]
    if not shutil.which("mpicxx") or not shutil.which("mpirun"):
        print("skipped: Open MPI: mpicxx or mpirun is missing (Debian: libopenmpi-dev openmpi-bin)")
        return peers
    binary = folder / "open_mpi"
    if not binary.exists():
        source = str(HERE / "open_mpi_peer.cc")
        subprocess.run(["mpicxx", "-O3", "-march=native", "-std=c++17", source, "-o", str(binary)], check=True)
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), str(binary)]
    peers["Open MPI"] = [*start, graph, *cases]
    return peers


def measure(command: list[str]) -> dict[str, float]:
    """Seconds by size."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    rows = [line.removeprefix("[rank 0] ").split() for line in done.stdout.splitlines()]
    return {row[0]: float(row[1]) for row in rows if len(row) == 2}


def report(ranks: int, graph: str, turns: dict[str, list[dict[str, float]]]) -> None:
    """Medians of the turns' medians, with the fastest and the slowest turn."""
    first = next(iter(turns.values()))
    print(f"\n{ranks} ranks, {graph}: microseconds, the median of {len(first)} turns (fastest..slowest)")
    print("| bytes | " + " | ".join(turns) + " |\n" + "| --- " * (len(turns) + 1) + "|")
    for size in first[0]:
        cells = []
        for runs in turns.values():
            found = [run[size] * 1e6 for run in runs if size in run]
            cell = f"{statistics.median(found):.1f} ({min(found):.1f}..{max(found):.1f})" if found else ""
            cells.append(cell)
        print(f"| {'100 of 10 kB' if size == 'many' else size} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Runs all turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--graphs", nargs="+", default=["ring", "expo2"])
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--peers", nargs="+", help="of those in the table's head; all, if not given")
    parser.add_argument("--scale", type=float, default=1.0, help="times the iterations")
    options = parser.parse_args()
    cases = [case_of(size, options.scale) for size in options.sizes]
    with tempfile.TemporaryDirectory() as name:
        for ranks in options.ranks:
            for graph in options.graphs:
                peers = commands(ranks, graph, cases, pathlib.Path(name))
                peers = {peer: words for peer, words in peers.items() if peer in (options.peers or peers)}
                turns: dict[str, list[dict[str, float]]] = {peer: [] for peer in peers}
                for turn in range(options.turns):
                    for peer, command in peers.items():
                        print(f"{ranks} ranks, {graph}, turn {turn + 1}: {peer}", file=sys.stderr)
                        turns[peer].append(measure(command))
                report(ranks, graph, turns)


if __name__ == "__main__":
    main()
