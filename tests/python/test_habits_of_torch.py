"""The rows of docs/python.md's table of habits; see cases/habits_of_torch.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.habits_of_torch"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_habit_of_torch(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
