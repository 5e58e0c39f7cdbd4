"""What is refused, and with which words; see cases/refusals.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.refusals"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_refusals(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
