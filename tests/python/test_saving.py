"""Checkpoints: what they hold, see cases/saving*.py; and ranks that end while they save."""

from __future__ import annotations

import sys

import pytest
from spawn import HERE, case_ids, check_case, run

MODULES = ("cases.saving", "cases.saving_experts", "cases.saving_failures", "cases.resharding")
CASES = [(module, *case) for module in MODULES for case in sorted(case_ids(module))]


@pytest.mark.parametrize(("module", "world_size", "name"), CASES)
def test_saving(module: str, world_size: int, name: str) -> None:
    check_case(module, world_size, name)


@pytest.mark.parametrize("number", ["new", "same"])
def test_a_rank_that_ends_at_any_operation_leaves_a_whole_checkpoint(number: str) -> None:
    """For each operation of each rank; see saving_main.py."""
    outcome = run([sys.executable, str(HERE / "saving_main.py"), number], 500)
    assert outcome.code == 0, outcome.output + outcome.errors
    assert "rank 0: " in outcome.output
    assert "rank 1: " in outcome.output
