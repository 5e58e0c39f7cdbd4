"""What algorithms remember; see cases/algorithm_state.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.algorithm_state"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_algorithm_state(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
