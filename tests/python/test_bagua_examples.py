"""What Bagua's examples do, on the CPU; see cases/bagua_examples.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.bagua_examples"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_example(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
