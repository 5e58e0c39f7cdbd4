"""`pelton.check`, and PELTON_CHECK; see cases/checking.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.checking"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_checking(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
