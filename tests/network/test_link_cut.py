"""A link between two hosts is cut in the middle of a transfer, and restored or not.

Needs `bazel build //benchmarks/point_to_point:wire_pair`, and root for namespaces; PELTON_WIRE_PAIR names another one.
"""

from __future__ import annotations

import pathlib
import time

from tests.network.conftest import MakeHosts
from tests.network.hosts import Hosts
from tests.network.pair import Ranks, start


def in_the_middle(hosts: Hosts, folder: pathlib.Path, turns: int, patience: int) -> Ranks:
    """Both ranks, with rank 0's ping-pongs done and its 64 MiB transfers begun."""
    ranks = start(hosts, folder, turns, patience)
    for _ in range(2):
        assert ranks[0].stdout is not None
        assert ranks[0].stdout.readline().startswith("pingpong")
    time.sleep(0.3)
    return ranks


def test_a_link_that_comes_back_costs_time_only(make_hosts: MakeHosts, tmp_path: pathlib.Path) -> None:
    hosts = make_hosts(rate="1gbit")
    ranks = in_the_middle(hosts, tmp_path, turns=5, patience=60)
    hosts.cut(1)
    time.sleep(1.5)
    hosts.restore(1)
    for rank in ranks:
        _, errors = rank.communicate(timeout=90)
        assert rank.returncode == 0, errors


def test_a_link_that_stays_cut_ends_in_a_status_that_names_the_peer(
    make_hosts: MakeHosts, tmp_path: pathlib.Path
) -> None:
    hosts = make_hosts(rate="1gbit")
    ranks = in_the_middle(hosts, tmp_path, turns=50, patience=8)
    hosts.cut(1)
    begin = time.monotonic()
    for number, rank in enumerate(ranks):
        _, errors = rank.communicate(timeout=60)
        assert rank.returncode != 0
        assert f"rank(s) {1 - number}" in errors or f"rank {1 - number} is lost" in errors, errors
    assert time.monotonic() - begin < 30
