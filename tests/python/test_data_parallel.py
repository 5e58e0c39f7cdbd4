"""The interface of torch's DistributedDataParallel; see cases/data_parallel.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.data_parallel"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_data_parallel(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
