"""Pelton's store of torch.distributed; see cases/c10d_store.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.c10d_store"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_store(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
