"""Algorithms written in Python; see cases/user_algorithms.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.user_algorithms"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_user_algorithms(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
