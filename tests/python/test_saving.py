"""Checkpoints: what they hold, see cases/saving.py; and ranks that end while they save."""

from __future__ import annotations

import sys

import pytest
from spawn import HERE, case_ids, check_case, run

MODULE = "cases.saving"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_saving(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


@pytest.mark.parametrize("number", ["new", "same"])
def test_a_rank_that_ends_at_any_operation_leaves_a_whole_checkpoint(number: str) -> None:
    """For each operation of each rank; see saving_main.py."""
    outcome = run([sys.executable, str(HERE / "saving_main.py"), number], 500)
    assert outcome.code == 0, outcome.output + outcome.errors
    assert "rank 0: " in outcome.output
    assert "rank 1: " in outcome.output
