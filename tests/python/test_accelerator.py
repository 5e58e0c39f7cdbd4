"""The device that stands in for a GPU; see cases/device.py. A process of its own has it: it changes PyTorch."""

import functools
import json
import os
import sys

import accelerator
import pytest
from cases.registry import cases_of
from spawn import HERE, run

MODULE = "cases.device"
NAMES = sorted(case.name for case in cases_of(MODULE))
# The second time work on streams lags behind, so that what does not wait for it is wrong.
LAGS_US = (0, 300)


@functools.cache
def _errors(lag_us: int) -> dict[str, str]:
    outcome = run([sys.executable, str(HERE / "device_main.py"), MODULE], 240, accelerator.environment(lag_us))
    assert outcome.code == 0, outcome.errors
    errors: dict[str, str] = json.loads(outcome.output.splitlines()[-1])
    return errors


@pytest.mark.parametrize("lag_us", LAGS_US)
@pytest.mark.parametrize("name", NAMES)
def test_device(name: str, lag_us: int) -> None:
    error = _errors(lag_us)[name]
    assert not error, error


def test_what_is_not_built_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_ACCELERATOR", os.devnull + "/nothing")
    with pytest.raises(FileNotFoundError, match="bazel build //tests/accelerator"):
        accelerator.environment()


def test_a_process_without_the_environment_is_told() -> None:
    changes = accelerator.environment() | {"PELTON_CUDART_LIBRARY": ""}
    outcome = run([sys.executable, "-c", "import accelerator; accelerator.load()"], 60, changes)
    assert "PELTON_CUDART_LIBRARY is not set" in outcome.errors


def test_a_process_ends_well_with_work_on_its_streams() -> None:
    program = "import accelerator; accelerator.load(); import torch; x = torch.ones(1 << 20, device='standin'); x += x"
    outcome = run([sys.executable, "-c", program], 60, accelerator.environment(lag_us=100_000))
    assert (outcome.code, outcome.errors) == (0, "")
