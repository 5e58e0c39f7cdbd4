"""Ranks that run apart come together; see cases/together.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.together"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_together(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
