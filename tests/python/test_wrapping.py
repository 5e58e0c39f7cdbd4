"""What a wrapped model does in each of the ways that it can be trained; see cases/wrapping.py and cases/no_sync.py."""

import pytest
from spawn import case_ids, check_case

MODULES = ("cases.no_sync", "cases.wrapping")


@pytest.mark.parametrize(
    ("module", "world_size", "name"), sorted((module, *found) for module in MODULES for found in case_ids(module))
)
def test_wrapping(module: str, world_size: int, name: str) -> None:
    check_case(module, world_size, name)
