"""Whose turn it is among the slow tests: a usual run has a sixth of them, so that it ends in 45 minutes on a new
machine of 2 cores. The number of commits chooses, so that six commits in a row have all of them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from tools.testing.environment import ROOT

COUNT = 6
VARIABLE = "PELTON_TURN"  # by which pytest hears of it; without it nothing is left out

# Of tests/python and tests/network: what takes longest, in seconds beside a compiler on 2 cores.
SECONDS = {
    "test_restarts": 315,
    "test_examples": 160,
    "test_waits": 138,
    "test_gpu": 133,
    "test_code_blocks": 131,
    "test_daemon": 110,
    "test_faults": 76,
    "test_lightning": 76,
    "test_joining": 75,
    "test_forks": 64,
    "test_consensus_digits": 54,
    "test_bluefog_world": 54,
    "test_saving": 51,
    "test_hosts": 47,
    "test_compat": 47,
    "test_status": 36,
    "test_torchrun_daemons": 33,
    "test_gloos_seat": 32,
    "test_gpu_daemon": 29,
    "test_consensus_examples": 26,
    "test_autotune_service": 26,
    "test_accelerate": 25,
    "test_contest": 25,
    "test_torch_distributed": 24,
    "test_cache": 23,
    "test_baguarun": 23,
    "test_ibfrun": 23,
    "test_bfrun": 22,
    "test_front": 22,
    "test_accelerator": 20,
    "test_torch_checkpoint": 18,
    "test_leftovers": 16,
    "test_launch": 16,
    "test_link_cut": 14,
    "test_site": 13,
    "test_delay": 13,
    "test_bayesian_optimizer": 12,
    "test_certificates": 11,
    "test_elastic_launch": 10,
}


def current() -> int:
    """Whose turn it is at this commit; the first one's where there is no repository."""
    command = ["git", "rev-list", "--count", "HEAD"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return int(printed or 0) % COUNT


def by_file() -> dict[str, int]:
    """The turn of each slow file. The longest is dealt first, each to the turn that has the least so far."""
    loads = [0] * COUNT
    turns = {}
    for name in sorted(SECONDS, key=lambda name: -SECONDS[name]):
        turns[name] = loads.index(min(loads))
        loads[turns[name]] += SECONDS[name]
    return turns


def left_out() -> set[str]:
    """The files that PELTON_TURN leaves to others."""
    with contextlib.suppress(KeyError):
        turn = int(os.environ[VARIABLE])
        return {name for name, own in by_file().items() if own != turn}
    return set()
