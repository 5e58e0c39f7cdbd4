"""Hosts that are far apart: every frame comes 20 ms late."""

from __future__ import annotations

import pathlib

from tests.network.conftest import MakeHosts
from tests.network.pair import start

DELAY_S = 0.02


def test_a_short_message_costs_the_way_and_a_long_one_its_bytes(make_hosts: MakeHosts, tmp_path: pathlib.Path) -> None:
    ranks = start(make_hosts(delay_s=DELAY_S), tmp_path, turns=1, patience=60)
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    lines = [line.split() for line in outputs[0][0].splitlines()]
    seconds = {(what, int(size)): float(taken) for what, size, taken in lines}
    for size in (8, 4096):
        # There and back, and nothing that waits for an answer besides; a busy machine adds to it.
        assert 2 * DELAY_S <= seconds["pingpong", size] < 3.9 * DELAY_S
    # A sender that waited for each 64 KiB would take 40 s.
    assert seconds["stream", 64 << 20] < 20
