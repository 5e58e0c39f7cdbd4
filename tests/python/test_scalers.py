"""Gradient scalers in other than plain loops; see cases/scalers.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.scalers"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_scalers(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
