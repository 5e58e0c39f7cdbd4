"""A rank that dies, leaves or does nothing is an exception on every survivor, in time and with its name."""

from __future__ import annotations

import concurrent.futures
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cases.faults import STILL_S, TIMEOUT_S
from spawn import HERE, Outcome, launcher, run

WORLD_SIZE = 3
# Death is noticed through a closed connection, long before the deadline; the rest is a busy machine's.
NOTICED_S = 3.5
SCENARIOS = {
    # what rank 1 does (rank 0, where it says so) -> the job's exit code, the exceptions, what their text must hold
    "killed_in_an_allreduce": (137, {"PeerLost", "Aborted"}, ["rank 1"]),
    "killed_in_a_backward": (137, {"PeerLost", "Aborted"}, ["rank 1"]),
    "killed_in_a_torch_allreduce": (137, {"PeerLost", "Aborted"}, ["rank 1"]),
    "killed_under_ddp": (137, {"PeerLost", "Aborted"}, ["rank 1"]),
    "killed_with_windows_between_hosts": (137, {"PeerLost"}, ["edge with rank 1: rank 1"]),
    "killed_in_a_barrier_under_a_mutex": (137, {"PeerLost", "Aborted"}, ["rank 1"]),
    "never_does_backward": (0, {"DeadlineExceeded"}, ["1", "bucket"]),
    "exits_early": (0, {"PeerLost", "Aborted"}, ["rank 1"]),
    "leaves_early": (0, {"PeerLost", "Aborted"}, ["rank 1"]),
    "ends_by_an_error": (1, {"PeerLost", "Aborted"}, ["rank 1"]),
    "coordinator_is_killed": (137, {"PeerLost", "Aborted"}, ["rank 0|coordinator"]),
}


@functools.cache
def _outcomes(folder: Path) -> dict[str, Outcome]:
    """All scenarios, two jobs at a time: most of their time they wait."""

    def job(name: str) -> Outcome:
        results = folder / name
        results.mkdir()
        outcome = run(launcher(WORLD_SIZE, "--linger", 30, HERE / "cases" / "faults.py", name, results), 90)
        outcome.results = {int(path.stem): json.loads(path.read_text()) for path in results.iterdir()}
        return outcome

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(SCENARIOS, pool.map(job, SCENARIOS)))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


def test_a_rank_that_stands_still_is_waited_for(tmp_path: Path) -> None:
    """For less than the heartbeats' timeout; the operations that need it end when it goes on, and no others wait."""
    outcome = run(launcher(WORLD_SIZE, HERE / "cases" / "faults.py", "stands_still_for_5_s", tmp_path), 90)
    assert outcome.code == 0, outcome.errors
    waited = [json.loads((tmp_path / f"{rank}.json").read_text())["seconds"] for rank in range(WORLD_SIZE)]
    assert min(waited[0], waited[2]) > 0.9 * STILL_S, waited


def _survivors(name: str) -> list[int]:
    return [1, 2] if name == "coordinator_is_killed" else [0, 2]


@pytest.mark.parametrize("name", SCENARIOS)
def test_survivors_get_an_exception_that_names_the_culprit(name: str, folder: Path) -> None:
    outcome = _outcomes(folder)[name]
    _, kinds, texts = SCENARIOS[name]
    for rank in _survivors(name):
        assert rank in outcome.results, f"rank {rank} never reported\n{outcome.errors}"
        report: dict[str, Any] = outcome.results[rank]
        assert report["type"] in kinds, report
        assert "PeltonError" in report["bases"], report
        for text in texts:
            assert re.search(text, report["text"]), report


@pytest.mark.parametrize("name", SCENARIOS)
def test_survivors_are_told_in_time(name: str, folder: Path) -> None:
    outcome = _outcomes(folder)[name]
    limit = TIMEOUT_S + 2 if name == "never_does_backward" else NOTICED_S
    for rank in _survivors(name):
        assert outcome.results[rank]["seconds"] < limit, outcome.results[rank]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_job_ends_with_the_culprits_code(name: str, folder: Path) -> None:
    outcome = _outcomes(folder)[name]
    assert outcome.code == SCENARIOS[name][0], outcome.errors


def test_the_launcher_says_which_rank_died_and_why(folder: Path) -> None:
    errors = _outcomes(folder)["killed_in_an_allreduce"].errors
    assert "rank 1" in errors
    assert "was killed by SIGKILL" in errors
    errors = _outcomes(folder)["ends_by_an_error"].errors
    assert "exited with code 1" in errors
    assert "pelton run:   [rank1]: KeyError: 'planted'" in errors  # torch.distributed puts the rank before it
