"""Algorithms that exchange weights after steps; see cases/step_averaging.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.step_averaging"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_step_averaging(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
