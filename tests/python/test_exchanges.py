"""Exchanges, reductions, coalesced forms and values; see cases/exchanges.py."""

import pytest
from spawn import case_ids, check_case

MODULE = "cases.exchanges"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_exchanges(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
