"""torch.distributed over Pelton; see cases/c10d_collectives.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.c10d_collectives"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_collectives(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
