"""Training while the bucket size is tuned; see cases/tuning.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.tuning"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_tuning(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
