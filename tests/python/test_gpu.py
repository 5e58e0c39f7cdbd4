"""Tensors of a GPU, for which a device of PyTorch stands in; see cases/gpu.py."""

import functools

import accelerator
import pytest
from cases.registry import cases_of
from spawn import Outcome, case_ids, check_outcome, run_modules

MODULE = "cases.gpu"
# The second time work on streams lags behind, so that what does not wait for it is wrong.
LAGS_US = (0, 300)


@functools.cache
def _outcome(world_size: int, lag_us: int) -> Outcome:
    return run_modules(world_size, [MODULE], changes=accelerator.environment(lag_us))


@pytest.mark.parametrize("lag_us", LAGS_US)
@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_gpu(world_size: int, name: str, lag_us: int) -> None:
    check_outcome(_outcome(world_size, lag_us), MODULE, world_size, name)


def test_the_device_is_not_loaded_here() -> None:
    """Cases are found by importing their module: that must not change this process's PyTorch."""
    import torch

    assert cases_of(MODULE)
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"
