"""A process that was forked from a rank speaks for nobody, never hangs, and holds nothing of the job's."""

from __future__ import annotations

import concurrent.futures
import functools
import json
from pathlib import Path

import pytest
from spawn import HERE, Outcome, launcher, run

WORLD_SIZE = 2
ENDS = ("child_exits", "child_fails", "child_is_killed", "child_ends_at_once", "child_lets_go")
WORKERS = ("workers_by_fork", "workers_by_spawn")
OTHERS = ("child_communicates", "child_writes_to_gradients", "killed_beside_its_children")
CHILD_ENDS_WITHIN_S = 30.0
# A closed connection tells at once; without it only the heartbeats' silence of 10 s would.
NOTICED_S = 5.0


@functools.cache
def _outcomes(folder: Path) -> dict[str, Outcome]:
    """All scenarios, two jobs at a time."""

    def job(name: str) -> Outcome:
        results = folder / name
        results.mkdir()
        command = launcher(WORLD_SIZE, "--linger", 30, HERE / "cases" / "forks.py", name, results)
        outcome = run(command, 240, {"PELTON_TIMEOUT": "120", "PELTON_JOIN_TIMEOUT": "120"})
        outcome.results = {int(path.stem): json.loads(path.read_text()) for path in results.glob("*.json")}
        return outcome

    names = [*ENDS, *WORKERS, *OTHERS]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(job, names)))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forks")


@pytest.mark.parametrize("name", ENDS)
def test_a_child_ends_in_any_way_and_training_goes_on(name: str, folder: Path) -> None:
    outcome = _outcomes(folder)[name]
    assert outcome.code == 0, outcome.errors
    assert set(outcome.results) == {0, 1}, outcome.errors
    assert 0 <= outcome.results[1]["seconds"] < CHILD_ENDS_WITHIN_S, outcome.results


@pytest.mark.parametrize("name", WORKERS)
def test_workers_of_a_data_loader_beside_training(name: str, folder: Path) -> None:
    outcome = _outcomes(folder)[name]
    assert outcome.code == 0, outcome.errors
    assert [outcome.results[rank]["batches"] for rank in range(WORLD_SIZE)] == [16, 16]


def test_a_child_that_communicates_is_refused(folder: Path) -> None:
    outcome = _outcomes(folder)["child_communicates"]
    assert outcome.code == 0, outcome.errors
    texts = outcome.results[1]["texts"]
    assert len(texts) == 7
    for text in texts:
        assert text.startswith("FailedPrecondition: "), texts
        assert "was forked from one that is a rank" in text, texts
        assert "spawn" in text, "and what to do"


def test_what_a_child_writes_to_gradients_stays_its_own(folder: Path) -> None:
    outcome = _outcomes(folder)["child_writes_to_gradients"]
    assert outcome.code == 0, outcome.errors
    assert 0 <= outcome.results[1]["seconds"] < CHILD_ENDS_WITHIN_S, outcome.results
    for rank in range(WORLD_SIZE):
        assert outcome.results[rank]["kept"], f"rank {rank}'s gradients changed with the child's"
        assert outcome.results[rank]["repeated"], f"rank {rank}: another backward pass found other gradients"


def test_a_rank_is_missed_at_once_although_its_children_live_on(folder: Path) -> None:
    outcome = _outcomes(folder)["killed_beside_its_children"]
    report = outcome.results[0]
    assert report["type"] in {"PeerLost", "Aborted"}, report
    assert "rank 1" in report["text"], report
    assert report["seconds"] < NOTICED_S, report
