"""A link between two hosts is cut in the middle of a transfer, and restored or not.

Needs `bazel build //benchmarks/point_to_point:ucx_pair`, and root for namespaces; PELTON_UCX_PAIR names another build.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.network.hosts import Hosts, NotPermitted

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAIR = os.environ.get("PELTON_UCX_PAIR", str(ROOT / "bazel-bin/benchmarks/point_to_point/ucx_pair"))


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if not os.path.exists(PAIR):
        pytest.skip("ucx_pair is not built: bazel build //benchmarks/point_to_point:ucx_pair")
    try:
        made = Hosts(2, rate="1gbit").__enter__()
    except NotPermitted as reason:
        pytest.skip(f"network namespaces are not permitted here: {reason}")
    yield made
    made.__exit__()


def start(hosts: Hosts, folder: pathlib.Path, turns: int, patience: int) -> list[subprocess.Popen[str]]:
    """Both ranks, with rank 0's ping-pongs done and its 64 MiB transfers begun."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ranks = []
    for rank in (0, 1):
        command = [PAIR, str(rank), hosts.interface, str(folder), str(turns), str(patience)]
        ranks.append(hosts.popen(rank, command, **pipes))
    for _ in range(2):
        assert ranks[0].stdout is not None
        assert ranks[0].stdout.readline().startswith("pingpong")
    time.sleep(0.3)
    return ranks


def test_a_link_that_comes_back_costs_time_only(hosts: Hosts, tmp_path: pathlib.Path) -> None:
    ranks = start(hosts, tmp_path, turns=5, patience=60)
    hosts.cut(1)
    time.sleep(1.5)
    hosts.restore(1)
    for rank in ranks:
        _, errors = rank.communicate(timeout=90)
        assert rank.returncode == 0, errors


def test_a_link_that_stays_cut_ends_in_a_status_that_names_the_peer(hosts: Hosts, tmp_path: pathlib.Path) -> None:
    ranks = start(hosts, tmp_path, turns=50, patience=8)
    hosts.cut(1)
    begin = time.monotonic()
    for number, rank in enumerate(ranks):
        _, errors = rank.communicate(timeout=60)
        assert rank.returncode != 0
        assert f"rank(s) {1 - number}" in errors or f"rank {1 - number} is lost" in errors, errors
    assert time.monotonic() - begin < 30
