"""Hugging Face Accelerate with Pelton's algorithms."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
import torch
from spawn import HERE, Outcome, launcher, run, srun


@functools.cache
def whole_run() -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return run(launcher(2, HERE / "accelerate_main.py", folder), 240)


CHECKS = ["refused", "trained", "accumulated", "triggered", "wrapped before", "own class", "resumed"]


@pytest.mark.parametrize("check", CHECKS)
def test_it_trains(check: str) -> None:
    outcome = whole_run()
    assert outcome.code == 0, outcome.output + outcome.errors
    for rank in range(2):
        assert f"[rank {rank}] {check}\n" in outcome.output


def test_a_job_of_slurm(tmp_path: Path) -> None:
    """Accelerate itself knows nothing of srun, and would train each rank by itself."""
    program = tmp_path / "program.py"
    program.write_text(
        "from pelton.accelerate import Accelerator\n"
        "accelerator = Accelerator(cpu=True)\n"
        "print(f'rank {accelerator.process_index} of {accelerator.num_processes}', flush=True)\n"
    )
    outputs = srun(2, program, 120)
    assert outputs == ["rank 0 of 2\n", "rank 1 of 2\n"]


def own_class(folder: Path, part: str, replaces_gloo: bool) -> dict[str, list[torch.Tensor]]:
    """What a script for Accelerate's own class leaves: weights by rank."""
    changes = {"PELTON_REPLACE_GLOO": "1"} if replaces_gloo else {}
    outcome = run(launcher(2, HERE / "accelerates_own_main.py", folder, part), 240, changes)
    assert outcome.code == 0, outcome.output + outcome.errors
    names = {path.name.rpartition("_")[0] for path in folder.iterdir()}
    return {name: [torch.load(folder / f"{name}_{rank}.pt") for rank in range(2)] for name in names}


def test_accelerates_own_class_trains_on_pelton_in_gloos_seat(tmp_path: Path) -> None:
    """Bitwise as on gloo, because a sum of two has one order."""
    (tmp_path / "gloo").mkdir()
    (tmp_path / "pelton").mkdir()
    on_gloo = own_class(tmp_path / "gloo", "plain", replaces_gloo=False)
    on_pelton = own_class(tmp_path / "pelton", "plain", replaces_gloo=True)
    assert list(on_gloo) == ["torch.distributed.distributed_c10d"] and list(on_pelton) == ["pelton._C"]
    (wanted,), (found,) = on_gloo.values(), on_pelton.values()
    for weights in (*wanted, *found):
        assert torch.equal(weights, wanted[0])


def test_accelerates_own_class_leaves_wrapped_models_to_pelton(tmp_path: Path) -> None:
    """With `evaluation_mode=True`; the ranks of decentralized averaging run apart, which DDP's mean would hinder."""
    found = own_class(tmp_path, "wrapped", replaces_gloo=True)
    first, second = found["gradient_allreduce"]
    assert torch.equal(first, second)
    first, second = found["decentralized"]
    assert not torch.equal(first, second)
    torch.testing.assert_close(first, second, rtol=0.1, atol=0.1)
