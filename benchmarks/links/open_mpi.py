"""Open MPI's allreduce between the same hosts."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from collections.abc import Sequence

from world import ROOT, Hosts

PEER = ROOT / "benchmarks" / "allreduce" / "open_mpi_peer.cc"
LIMIT_S = 900
# How mpirun starts its daemon on another host: the first word is the host's address, the rest a command for its shell.
_AGENT = """#!/bin/sh
host=$1; shift
case $host in
{cases}
esac
exec ip netns exec "$space" unshare --uts sh -c "hostname $space; $*"
"""


def build(folder: pathlib.Path) -> pathlib.Path | None:
    """The program, or None where Open MPI is not installed."""
    if not shutil.which("mpicxx") or not shutil.which("mpirun"):
        return None
    program = folder / "open_mpi"
    subprocess.run(["mpicxx", "-O2", "-std=c++17", f"-I{ROOT}", str(PEER), "-o", str(program)], check=True)
    return program


def time_open_mpi(
    program: pathlib.Path, hosts: Hosts, host_of: Sequence[int], sizes: Sequence[int], seconds_per_size: float
) -> dict[int, float]:
    """Median seconds of an allreduce by bytes.

    Args:
      program: as `build` made it.
      hosts: where it runs; mpirun itself is on the first.
      host_of: the host of each rank.
      sizes: bytes.
      seconds_per_size: how long a size may take, at 10 MB/s and 1 ms.
    """
    agent = program.with_name("agent")
    cases = [f"  {hosts.address(host)}) space={hosts.name(host)} ;;" for host in range(hosts.count)]
    agent.write_text(_AGENT.format(cases="\n".join(cases)))
    agent.chmod(0o755)
    ranks_on = [list(host_of).count(host) for host in range(hosts.count)]
    places = ",".join(f"{hosts.address(host)}:{count}" for host, count in enumerate(ranks_on))
    modules = {"pml": "ob1", "btl": "tcp,self,vader", "btl_tcp_if_include": hosts.interface}
    modules |= {"oob_tcp_if_include": hosts.interface, "plm_rsh_agent": str(agent)}
    settings = [word for name, value in modules.items() for word in ("--mca", name, value)]
    counts = {size: max(int(seconds_per_size / (size / 1e7 + 1e-3)), 3) for size in sizes}
    timed = [f"{size}:{count}:{min(20, count) if size <= 65536 else 1}" for size, count in counts.items()]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", *settings, "--host", places]
    command += ["-n", str(len(host_of)), str(program), *timed]
    process = hosts.popen(0, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    printed, errors = process.communicate(timeout=LIMIT_S)
    if process.returncode != 0:
        raise SystemExit(f"Open MPI ended with {process.returncode}:\n{errors}")
    rows = [line.split() for line in printed.splitlines()]
    return {int(size): float(median) for size, median, _ in rows}
