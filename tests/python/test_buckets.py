"""Registered tensors, and the buckets that they are put into; see cases/buckets.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.buckets"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_buckets(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
