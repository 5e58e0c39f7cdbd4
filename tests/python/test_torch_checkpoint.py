"""PyTorch's own checkpoints; see cases/torch_checkpoint.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from spawn import case_ids, check_case, check_outcome, run_modules

MODULE = "cases.torch_checkpoint"
JOBS = "cases.torch_checkpoint_jobs"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_torch_checkpoint(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


def test_two_ranks_load_what_four_have_saved(tmp_path: Path) -> None:
    for world_size, verb in ((4, "saves"), (2, "loads")):
        outcome = run_modules(world_size, [JOBS], 200, {"PELTON_TEST_FOLDER": str(tmp_path)})
        for name in (verb, f"{verb}_experts"):
            check_outcome(outcome, JOBS, world_size, name)
        assert (tmp_path / "saved" / ".metadata").exists()
