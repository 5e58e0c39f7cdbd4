"""What a wrapped model does in each of the ways that it can be trained; see cases/wrapping.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.wrapping"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_wrapping(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
