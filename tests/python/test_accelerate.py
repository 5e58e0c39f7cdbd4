"""Hugging Face Accelerate with Pelton's algorithms."""

from __future__ import annotations

import functools

import pytest
from spawn import HERE, Outcome, launcher, run


@functools.cache
def whole_run() -> Outcome:
    return run(launcher(2, HERE / "accelerate_main.py"), 240)


@pytest.mark.parametrize("check", ["refused", "trained", "accumulated"])
def test_it_trains(check: str) -> None:
    outcome = whole_run()
    assert outcome.code == 0, outcome.output + outcome.errors
    for rank in range(2):
        assert f"[rank {rank}] {check}\n" in outcome.output
