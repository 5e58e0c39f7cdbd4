"""DDP, FSDP2, meshes and hooks over Pelton; see cases/c10d_training.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.c10d_training"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_training(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
