"""Gradients from backward passes within backward passes; see cases/checkpointing.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.checkpointing"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_checkpointing(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
