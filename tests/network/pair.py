"""Two ranks on two hosts that send to each other: `//benchmarks/point_to_point:wire_pair`."""

from __future__ import annotations

import os
import pathlib
import subprocess

from tests.network.hosts import Hosts

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAIR = os.environ.get("PELTON_WIRE_PAIR", str(ROOT / "bazel-bin/benchmarks/point_to_point/wire_pair"))
Ranks = list["subprocess.Popen[str]"]


def start(hosts: Hosts, folder: pathlib.Path, turns: int, patience: int, wire: str = "tcp") -> Ranks:
    """Both ranks; rank 0 prints "pingpong 8 SECONDS", "pingpong 4096 SECONDS", "stream 67108864 SECONDS".

    Args:
      hosts: two of them.
      folder: where the ranks meet.
      turns: of the streams; a hundred times as many ping-pongs.
      patience: for each operation. Units: seconds.
      wire: "tcp" or "ucx".
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ranks = []
    for rank in (0, 1):
        command = [PAIR, str(rank), hosts.interface, str(folder), str(turns), str(patience), wire]
        ranks.append(hosts.popen(rank, command, **pipes))
    return ranks
