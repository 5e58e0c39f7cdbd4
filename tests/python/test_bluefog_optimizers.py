"""BlueFog's optimizers; see cases/bluefog_optimizers.py and the modules beside it."""

import pytest
from spawn import case_ids, check_case

MODULES = (
    "cases.bluefog_bytes",
    "cases.bluefog_fixed_points",
    "cases.bluefog_habits",
    "cases.bluefog_optimizers",
    "cases.bluefog_weights",
)


@pytest.mark.parametrize(
    ("module", "world_size", "name"), sorted((module, *found) for module in MODULES for found in case_ids(module))
)
def test_optimizer(module: str, world_size: int, name: str) -> None:
    check_case(module, world_size, name)
