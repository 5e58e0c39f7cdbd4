"""Algorithms that average weights; see cases/weight_averaging.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.weight_averaging"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_weight_averaging(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
