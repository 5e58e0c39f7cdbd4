"""What is registered, broadcast and noticed; see cases/registration.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.registration"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_registration(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
