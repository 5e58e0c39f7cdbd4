"""BlueFog's operations; see cases/bluefog_operations.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.bluefog_operations"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_operation(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
