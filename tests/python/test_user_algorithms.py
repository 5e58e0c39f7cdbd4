"""Algorithms written in Python; see cases/user_algorithms.py and cases/hanging_function.py."""

import pytest
from spawn import HERE, case_ids, check_case, launcher, run

MODULE = "cases.user_algorithms"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_user_algorithms(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


@pytest.mark.parametrize("how", ["sleeps", "spins"])
def test_a_function_that_never_returns_does_not_hold_up_the_end_of_its_process(how: str) -> None:
    outcome = run(launcher(2, "--linger", 60, HERE / "cases" / "hanging_function.py", how), 180)
    assert outcome.code == 0, outcome.errors
    assert "rank 0 got: " in outcome.output
    named = [line for line in outcome.output.splitlines() if "rank 1 got: " in line]
    assert len(named) == 1
    assert "Python operation 'hang' of bucket" in named[0]
