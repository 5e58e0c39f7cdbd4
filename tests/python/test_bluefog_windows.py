"""BlueFog's windows; see cases/bluefog_windows.py."""

from __future__ import annotations

import functools

import pytest
from spawn import Outcome, case_ids, check_case, check_outcome, run_modules

MODULE = "cases.bluefog_windows"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_windows(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


@functools.cache
def _unreadable() -> Outcome:
    return run_modules(2, [MODULE], changes={"PELTON_PTRACE": "0"})


@pytest.mark.parametrize("name", sorted(name for size, name in case_ids(MODULE) if size == 2))
def test_windows_of_ranks_that_may_not_read_each_other(name: str) -> None:
    check_outcome(_unreadable(), MODULE, 2, name)
