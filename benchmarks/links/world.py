"""Ranks on hosts that are network namespaces, joined by links of a given rate."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.network.hosts import Hosts  # noqa: E402

PORT = "29777"  # of namespaces that nobody else is in
LIMIT_S = 1500


def _environment(hosts: Hosts, rank: int, host_of: Sequence[int]) -> dict[str, str]:
    here = [other for other, host in enumerate(host_of) if host == host_of[rank]]
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(host_of)),
        "LOCAL_RANK": str(here.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "MASTER_ADDR": hosts.address(0),
        "MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": hosts.interface,
        "PELTON_INTERFACE": hosts.interface,
        "PELTON_INSECURE": "1",  # nobody else is on these links
        "OMP_NUM_THREADS": "1",
    }


Changes = Callable[[int], dict[str, str]]


def lines_of_rank_0(
    hosts: Hosts, host_of: Sequence[int], command: Sequence[str], changes: Changes = lambda _: {}
) -> Iterator[str]:
    """Runs `command` as every rank; rank r is on host host_of[r], and its environment has changes(r).
    What rank 0 prints, line by line.

    Raises:
      SystemExit: a rank failed.
    """
    limited = ["timeout", str(LIMIT_S), *command]
    ranks = [
        hosts.popen(
            host,
            limited,
            env={**_environment(hosts, rank, host_of), **changes(rank)},
            stdout=subprocess.PIPE if rank == 0 else None,
        )
        for rank, host in enumerate(host_of)
    ]
    try:
        assert ranks[0].stdout is not None
        yield from ranks[0].stdout
        statuses = [rank.wait(30) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(statuses):
        raise SystemExit(f"the ranks ended with {statuses}")
