"""1-bit Adam and 0/1 Adam against their formulas; see cases/adam_steps.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.adam_steps"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_adam_steps(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
