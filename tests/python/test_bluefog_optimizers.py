"""BlueFog's optimizers; see cases/bluefog_optimizers.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.bluefog_optimizers"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_optimizer(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
