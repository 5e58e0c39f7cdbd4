"""Adams whose moments are averaged, out of the ordinary; see cases/adams.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.adams"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_adams(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
