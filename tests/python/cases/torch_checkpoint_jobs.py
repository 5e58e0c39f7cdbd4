"""A job saves by torch.distributed.checkpoint, and one of another size loads; see test_torch_checkpoint.py."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict_saver import save

from cases.checks import rank_and_size
from cases.registry import case
from cases.saving import assert_same_values
from cases.torch_checkpoint import Training
from cases.torch_world import torch_world


def _folder() -> Path:
    return Path(os.environ["PELTON_TEST_FOLDER"])


@case(4)
def saves() -> None:
    with torch_world():
        training = Training(0)
        training.steps(0, 3)
        save(training.state(), checkpoint_id=_folder() / "saved")
        torch.save(training.values(), _folder() / f"values{rank_and_size()[0]}.pt")


@case(2)
def loads() -> None:
    with torch_world():
        other = Training(50)
        other.load(_folder() / "saved")
        for rank in range(4):
            wanted = torch.load(_folder() / f"values{rank}.pt", weights_only=True)
            assert_same_values(other.values(), wanted, "two of four")
        other.steps(3, 5)
