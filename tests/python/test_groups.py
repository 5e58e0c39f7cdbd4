"""Groups of ranks; see cases/groups.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.groups"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_groups(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
