"""Adams whose moments are averaged; see cases/momenta.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.momenta"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_momenta(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
