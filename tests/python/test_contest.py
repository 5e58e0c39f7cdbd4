"""Training while algorithms that are equally right have turns, and schedules between hosts; see cases/contest.py."""

import functools

import pytest
from spawn import Outcome, case_ids, check_case, check_outcome, run_modules

MODULE = "cases.contest"
# One rank on each host, and two.
LAYOUTS = ((3, 1), (4, 2))


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_contest(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


@functools.cache
def _outcome(world_size: int, ranks_per_host: int) -> Outcome:
    return run_modules(world_size, [MODULE], changes={"PELTON_TEST_RANKS_PER_HOST": str(ranks_per_host)})


@pytest.mark.parametrize(("world_size", "ranks_per_host"), LAYOUTS)
def test_schedules_between_hosts(world_size: int, ranks_per_host: int) -> None:
    outcome = _outcome(world_size, ranks_per_host)
    check_outcome(outcome, MODULE, world_size, "schedules_between_hosts_are_measured_and_tried")
