"""Times allreduce of Pelton and its peers in turns, in one run, and prints ratios.

A peer is a class below: what it needs to run here, and the command that prints a line
"BYTES MEDIAN_SECONDS MIN_SECONDS" per case, "BYTES:ITERATIONS:BATCH". On a busy machine only figures of one
run compare.
"""

import argparse
import dataclasses
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PELTON = ROOT / "bazel-bin/benchmarks/allreduce/pelton_peer"
COMPILE = ["-O2", "-std=c++17", f"-I{ROOT}"]
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]


class Skipped(Exception):
    """The peer is not installed; the text says what is missing."""


@dataclasses.dataclass
class Peer:
    """One implementation. `command` gives the words that time `cases` at `ranks`."""

    name: str
    folder: pathlib.Path  # for what it builds

    def prepare(self) -> None:
        """Builds what is needed, or raises Skipped."""

    def command(self, ranks: int, cases: list[str]) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)


class Pelton(Peer):
    def prepare(self) -> None:
        if not PELTON.exists():
            raise Skipped(f"{PELTON.name} is not built: bazel build //benchmarks/allreduce:pelton_peer")

    def command(self, ranks: int, cases: list[str]) -> list[str]:
        return [str(PELTON), self.name.split()[1], str(ranks), *cases]


class PeltonPython(Peer):
    """The same, called from Python."""

    def prepare(self) -> None:
        if subprocess.run([sys.executable, "-c", "import pelton"], check=False, capture_output=True).returncode != 0:
            raise Skipped(f"{sys.executable} has no pelton: tools/setup installs it")

    def command(self, ranks: int, cases: list[str]) -> list[str]:
        start = [sys.executable, "-m", "pelton_run", "-np", str(ranks), str(HERE / "pelton_python_peer.py")]
        return [*start, self.name.split()[1], *cases]


class Bare(Peer):
    """The copies and the sum alone, in a plain loop of two processes without a runtime. It is one way through shared
    memory, and no floor: Pelton was faster (docs/performance.md).
    """

    def prepare(self) -> None:
        source = [str(HERE / "bare_peer.cc"), "-o", str(self.folder / "bare")]
        subprocess.run(["g++", *COMPILE, "-O3", "-march=native", *source], check=True)

    def command(self, ranks: int, cases: list[str]) -> list[str]:
        return [str(self.folder / "bare"), str(ranks), *cases]


class OpenMpi(Peer):
    def prepare(self) -> None:
        if not shutil.which("mpicxx") or not shutil.which("mpirun"):
            raise Skipped("mpicxx or mpirun is missing (Debian: libopenmpi-dev openmpi-bin)")
        source = [str(HERE / "open_mpi_peer.cc"), "-o", str(self.folder / "open_mpi")]
        subprocess.run(["mpicxx", *COMPILE, *source], check=True)

    def command(self, ranks: int, cases: list[str]) -> list[str]:
        start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
        return [*start, str(self.folder / "open_mpi"), *cases]


class Gloo(Peer):
    def prepare(self) -> None:
        if subprocess.run([sys.executable, "-c", "import torch"], check=False).returncode != 0:
            raise Skipped(f"{sys.executable} has no torch")

    def command(self, ranks: int, cases: list[str]) -> list[str]:
        return [sys.executable, str(HERE / "gloo_peer.py"), str(ranks), *cases]


class OneCcl(Peer):
    """Needs the prefix of a virtual environment with oneccl-devel and impi-devel: --oneccl."""

    prefix = ""

    def prepare(self) -> None:
        lib = pathlib.Path(self.prefix) / "lib"
        if not self.prefix or not (lib / "libccl.so").exists():
            raise Skipped("name a venv with `pip install oneccl-devel impi-devel` by --oneccl")
        paths = [f"-I{self.prefix}/include", f"-L{lib}", f"-Wl,-rpath,{lib},-rpath-link,{lib}"]
        source = [str(HERE / "oneccl_peer.cc"), "-o", str(self.folder / "oneccl")]
        build = ["g++", *COMPILE, *source, *paths, "-lccl", "-lmpi"]
        built = subprocess.run(build, check=False, capture_output=True, text=True)
        if built.returncode != 0:
            raise Skipped("it does not build: " + built.stderr.strip().splitlines()[-1])

    def command(self, ranks: int, cases: list[str]) -> list[str]:
        start = [f"{self.prefix}/bin/mpirun", "-n", str(ranks)]
        return [*start, str(self.folder / "oneccl"), *cases]

    def environment(self) -> dict[str, str]:
        path = f"{self.prefix}/bin:" + os.environ["PATH"]
        prefix = str(self.prefix)
        return {
            **os.environ,
            "PATH": path,
            "CCL_ROOT": prefix,
            "I_MPI_ROOT": prefix,
            "LD_LIBRARY_PATH": f"{prefix}/lib",
            "FI_PROVIDER": "shm",
            "CCL_ATL_TRANSPORT": "mpi",
        }


def case_of(size: int) -> str:
    """How often a size is timed; small ones in batches: a rank that shares a core does some at once, then waits."""
    return f"{size}:{min(max((1 << 29) // size, 7), 2000)}:{20 if size <= 65536 else 1}"


def measure(peer: Peer, ranks: int, sizes: list[int]) -> dict[int, tuple[float, float]]:
    """One turn: median and minimum seconds by size; raises Skipped if it fails."""
    done = subprocess.run(
        peer.command(ranks, [case_of(size) for size in sizes]),
        env=peer.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode != 0:
        raise Skipped("it failed: " + " ".join((done.stderr or done.stdout).split())[-300:])
    rows = [line.removeprefix("[rank 0] ").split() for line in done.stdout.splitlines()]
    return {int(r[0]): (float(r[1]), float(r[2])) for r in rows if len(r) == 3 and r[0].isdigit()}


def name_of(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def report(ranks: int, sizes: list[int], turns: dict[str, list[dict[int, tuple[float, float]]]]) -> None:
    print(f"\n{ranks} ranks: median of medians [least] in microseconds; (times Pelton region)")
    print("| bytes | " + " | ".join(turns) + " |\n" + "| --- " * (len(turns) + 1) + "|")
    for size in sizes:
        cells = []
        base = statistics.median(turn[size][0] for turn in turns["pelton region"])
        for results in turns.values():
            median = statistics.median(turn[size][0] for turn in results)
            least = min(turn[size][1] for turn in results)
            cells.append(f"{median * 1e6:.1f} [{least * 1e6:.1f}] ({median / base:.1f}x)")
        print(f"| {name_of(size)} | " + " | ".join(cells) + " |", flush=True)
    print("The share of the copy rate is the figure in brackets of the copy column.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--oneccl", default="", help="prefix of oneccl-devel and impi-devel")
    options = parser.parse_args()
    OneCcl.prefix = options.oneccl
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        peers: list[Peer] = [Pelton("pelton region", folder), Pelton("pelton private", folder)]
        peers.append(Bare("bare private", folder))
        peers += [OpenMpi("Open MPI", folder), Gloo("gloo", folder), OneCcl("oneCCL", folder)]
        peers += [PeltonPython("python region", folder), PeltonPython("python private", folder)]
        peers.append(Pelton("pelton copy", folder))
        ready = []
        for peer in peers:
            try:
                peer.prepare()
                ready.append(peer)
            except Skipped as reason:
                print(f"skipped: {peer.name}: {reason}")
        for ranks in options.ranks:
            turns: dict[str, list[dict[int, tuple[float, float]]]] = {}
            for turn in range(options.turns):
                for peer in list(ready):
                    print(f"{ranks} ranks, turn {turn + 1}: {peer.name}", file=sys.stderr)
                    try:
                        turns.setdefault(peer.name, []).append(measure(peer, ranks, options.sizes))
                    except (Skipped, subprocess.TimeoutExpired) as reason:
                        print(f"skipped: {peer.name}: {reason}")
                        ready.remove(peer)
                        turns.pop(peer.name, None)
            report(ranks, options.sizes, turns)


if __name__ == "__main__":
    main()
