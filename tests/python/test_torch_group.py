"""torch.distributed after Pelton's init_process_group; see cases/torch_group.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.torch_group"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_torch_group(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
