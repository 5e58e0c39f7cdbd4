"""What users do with gradients; see cases/autograd.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.autograd"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_autograd(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
