"""What a daemon adds to an allreduce that Python calls, and what it takes at rest; see docs/daemon.md.

    tools/bench daemon calls [--turns N] [--repeats N] [--rest SECONDS]

Without RANK it starts jobs of 2 ranks, in turns in process and with daemons, and prints medians of the turns' medians
and of the paired turns' ratios. With RANK it is a rank of such a job.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pelton
import pelton.torch_api as bagua
import torch

WARM_UP = 5
LARGE_COUNT = 16 << 20  # float32: 64 MiB
Figures = dict[str, float]


def _tensors() -> dict[str, tuple[Callable[[], torch.Tensor], int]]:
    """What is reduced, and how many repeats one of the large ones counts for."""
    return {
        "allreduce 4 KiB": (lambda: torch.zeros(1024), 50),
        "allreduce 64 MiB, pelton.empty": (lambda: pelton.empty(LARGE_COUNT).zero_(), 1),
        "allreduce 64 MiB, other memory": (lambda: torch.zeros(LARGE_COUNT), 1),
    }


def _timed(tensor: torch.Tensor, repeats: int) -> float:
    """The median time of an allreduce, all ranks beginning together. Units: milliseconds."""
    times = []
    for i in range(WARM_UP + repeats):
        bagua.communication.barrier()
        start = time.perf_counter()
        bagua.communication.allreduce_inplace(tensor)
        if i >= WARM_UP:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def _daemon_pid() -> int | None:
    """Of this rank's daemon: who listens where the rank attached."""
    address = os.environ.get("PELTON_COORDINATOR", "")
    if not address.startswith("unix:"):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address.removeprefix("unix:"))
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int) -> float:
    """Resident and not shared with others by a region: what a daemon takes beside regions."""
    status = Path(f"/proc/{pid}/status").read_text()
    sizes = dict(line.split(":", 1) for line in status.splitlines())
    return sum(int(sizes[name].split()[0]) for name in ("RssAnon", "RssFile")) / 1024


def _at_rest(pid: int, seconds: float) -> Figures:
    before = _cpu_seconds(pid)
    time.sleep(seconds)
    share = (_cpu_seconds(pid) - before) / seconds * 100
    return {"daemon at rest, % of a core": share, "daemon at rest, MB beside regions": _memory_mb(pid)}


def _rank(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    bagua.init_process_group()
    found = {name: _timed(make(), options.repeats * factor) for name, (make, factor) in _tensors().items()}
    daemon = _daemon_pid()
    bagua.communication.barrier()
    if daemon is not None:
        found |= _at_rest(daemon, options.rest)
    if bagua.get_rank() == 0:
        Path(options.result).write_text(json.dumps(found))
    bagua.communication.barrier()


def _job(options: argparse.Namespace, backend: str) -> Figures:
    result = f"{options.folder}/{backend}.json"
    words = ["--result", result, "--repeats", str(options.repeats), "--rest", str(options.rest)]
    command = [sys.executable, "-m", "pelton_run", "-np", "2", "--backend", backend, __file__, *words]
    subprocess.run(command, check=True, timeout=600)
    found: Figures = json.loads(Path(result).read_text())
    return found


def _start(options: argparse.Namespace) -> None:
    turns = [(_job(options, "process"), _job(options, "daemon")) for _ in range(options.turns)]
    print(f"{'ms, medians':34}{'in process':>12}{'daemon':>12}{'ratio':>10}")
    for name in turns[0][0]:
        here, there = [turn[0][name] for turn in turns], [turn[1][name] for turn in turns]
        ratio = statistics.median(b / a for a, b in zip(here, there))
        print(f"{name:34}{statistics.median(here):12.3f}{statistics.median(there):12.3f}{ratio:10.3f}")
    for name in turns[0][1].keys() - turns[0][0].keys():
        print(f"{name:34}{'':12}{statistics.median(turn[1][name] for turn in turns):12.3f}")


def main() -> None:
    """Starts the jobs, or is a rank of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=20, help="of a large allreduce; a small one: 50 times as many")
    parser.add_argument("--rest", type=float, default=5, help="seconds for which the daemons are watched at rest")
    parser.add_argument("--result", help="where rank 0 writes its figures")
    options = parser.parse_args()
    if "RANK" in os.environ:
        _rank(options)
        return
    with tempfile.TemporaryDirectory() as options.folder:
        _start(options)


if __name__ == "__main__":
    main()
