"""Averaging beside training; see cases/asynchronous.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.asynchronous"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_asynchronous(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
