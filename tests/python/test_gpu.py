"""Tensors of a GPU, for which a device of PyTorch stands in; see cases/gpu*.py."""

import functools

import accelerator
import pytest
from cases.registry import cases_of
from spawn import Outcome, case_ids, check_outcome, run_modules

MODULES = ("cases.gpu", "cases.gpu_bluefog", "cases.gpu_neighbors", "cases.gpu_windows")
CASES = sorted((module, world_size, name) for module in MODULES for world_size, name in case_ids(module))
# The second time work on streams lags behind, so that what does not wait for it is wrong.
LAGS_US = (0, 300)
# Long against the time in which another thread reads a tensor and writes to it.
LONG_LAG_US = 4000


@functools.cache
def _outcome(module: str, world_size: int, lag_us: int) -> Outcome:
    return run_modules(world_size, [module], changes=accelerator.environment(lag_us))


@pytest.mark.parametrize("lag_us", LAGS_US)
@pytest.mark.parametrize(("module", "world_size", "name"), CASES)
def test_gpu(module: str, world_size: int, name: str, lag_us: int) -> None:
    check_outcome(_outcome(module, world_size, lag_us), module, world_size, name)


@pytest.mark.parametrize("name", sorted(name for _, name in case_ids("cases.gpu_streams")))
def test_streams(name: str) -> None:
    check_outcome(_outcome("cases.gpu_streams", 1, LONG_LAG_US), "cases.gpu_streams", 1, name)


def test_the_device_is_not_loaded_here() -> None:
    """Cases are found by importing their module: that must not change this process's PyTorch."""
    import torch

    assert all(cases_of(module) for module in MODULES)
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"
