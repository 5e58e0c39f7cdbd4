"""Accuracy on the digits with every algorithm; see cases/convergence.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.convergence"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_convergence(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
