"""What PyTorch's profilers show of a wrapped model; see cases/profiling.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.profiling"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_profiling(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
