"""`ibfrun`: ranks that wait for a notebook, here this test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ipyparallel
import pytest
from pelton.bluefog.run.interactive_run import interrupt_hanged_processes
from spawn import environment

_SECONDS = 120


def ibfrun(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pelton_run.ibfrun", *map(str, words)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=2 * _SECONDS)


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """IPython's folder of this test alone."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def two_ranks(profiles: Path) -> Iterator[Any]:
    """A client of two ranks."""
    started = ibfrun("start", "-np", 2)
    assert started.returncode == 0, started.stderr
    assert "2 ranks" in started.stdout
    with ipyparallel.Client(profile="bluefog") as client:
        yield client
    stopped = ibfrun("stop")
    assert stopped.returncode == 0, stopped.stderr


def _mean() -> tuple[int, float]:
    import pelton.bluefog.torch as bf
    import torch

    bf.init()
    return bf.rank(), float(bf.allreduce(torch.tensor([bf.rank() + 1.0])))


def _hang() -> None:
    import time

    time.sleep(10 * 60)


def _all(client: Any, function: Callable[[], Any]) -> list[Any]:
    found: list[Any] = client[:].apply_async(function).get(_SECONDS)
    return found


def test_ranks_do_what_a_notebook_asks_and_end_with_it(two_ranks: Any, profiles: Path) -> None:
    assert sorted(_all(two_ranks, _mean)) == [(0, 1.5), (1, 1.5)]
    assert interrupt_hanged_processes() == []
    again = ibfrun("start", "-np", 2)
    assert again.returncode == 1 and "ibfrun stop" in again.stderr


def test_a_rank_that_hangs_is_interrupted(two_ranks: Any) -> None:
    hanging = two_ranks[1].apply_async(_hang)
    while not two_ranks.queue_status(1)["queue"] and not two_ranks.queue_status(1)["tasks"]:
        time.sleep(0.05)  # until it has reached the rank
    assert interrupt_hanged_processes() == [1]
    with pytest.raises(ipyparallel.RemoteError, match="KeyboardInterrupt"):
        hanging.get(_SECONDS)
    pids = _all(two_ranks, os.getpid)
    assert len(set(pids)) == 2


def test_there_is_nothing_to_end(profiles: Path) -> None:
    stopped = ibfrun("stop", "--ipython-profile", "other")
    assert stopped.returncode == 1 and "'other' has no ranks" in stopped.stderr


def test_engines_that_cannot_start_are_told(profiles: Path) -> None:
    started = ibfrun("start", "-np", 0)
    assert started.returncode == 2 and "-np 0" in started.stderr
