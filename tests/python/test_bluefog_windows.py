"""BlueFog's windows; see cases/bluefog_windows.py."""

from __future__ import annotations

import functools

import pytest
from spawn import Outcome, case_ids, check_case, check_outcome, run_modules

MODULE = "cases.bluefog_windows"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_windows(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


# (ranks, ranks on each host, module): labels stand for hosts.
BETWEEN_HOSTS = [(2, 1, MODULE), (4, 2, MODULE), (4, 2, "cases.bluefog_optimizers")]


@functools.cache
def _between_hosts(world_size: int, ranks_per_host: int, module: str) -> Outcome:
    return run_modules(world_size, [module], changes={"PELTON_TEST_RANKS_PER_HOST": str(ranks_per_host)})


@pytest.mark.parametrize(
    ("world_size", "ranks_per_host", "module", "name"),
    [(*job, name) for job in BETWEEN_HOSTS for size, name in sorted(case_ids(job[2])) if size == job[0]],
)
def test_windows_between_hosts(world_size: int, ranks_per_host: int, module: str, name: str) -> None:
    """What they do inside a host, with the same results."""
    check_outcome(_between_hosts(world_size, ranks_per_host, module), module, world_size, name)


@functools.cache
def _unreadable() -> Outcome:
    return run_modules(2, [MODULE], changes={"PELTON_PTRACE": "0"})


@pytest.mark.parametrize("name", sorted(name for size, name in case_ids(MODULE) if size == 2))
def test_windows_of_ranks_that_may_not_read_each_other(name: str) -> None:
    check_outcome(_unreadable(), MODULE, 2, name)
