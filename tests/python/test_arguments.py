"""Wrong arguments of collectives; see cases/arguments.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.arguments"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_arguments(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
