"""A job saves by torch.distributed.checkpoint, and one of another size loads; see test_torch_checkpoint.py."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from pelton.torch_api.checkpoint.planners import LoadPlanner, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from cases.checks import rank_and_size
from cases.moe import Net as ExpertNet
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


def _experts(training: Training, first: int) -> dict[str, torch.Tensor]:
    """By their numbers among those of all ranks."""
    experts = training.model.moe.bagua_moe.experts.bagua_experts
    return {
        f"{first + number}.{name}": value.clone()
        for number, expert in enumerate(experts)
        for name, value in expert.state_dict().items()
    }


@case(4)
def saves_experts() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        training = Training(0, lambda: ExpertNet(local=1))
        training.steps(0, 3)
        save({"model": training.model.state_dict()}, checkpoint_id=_folder() / "experts", planner=SavePlanner())
        torch.save(_experts(training, rank), _folder() / f"expert{rank}.pt")


@case(2)
def loads_experts() -> None:
    """Two on a rank; and all of them in one process, which needs no planner."""
    rank, _ = rank_and_size()
    wanted = [torch.load(_folder() / f"expert{number}.pt", weights_only=True) for number in range(4)]
    with torch_world():
        other = Training(50, lambda: ExpertNet(local=2))
        state = other.model.state_dict()
        load({"model": state}, checkpoint_id=_folder() / "experts", planner=LoadPlanner())
        other.model.load_state_dict(state)
        assert_same_values(_experts(other, 2 * rank), wanted[2 * rank] | wanted[2 * rank + 1], "two of four")
        other.steps(3, 5)
        names = {
            f"moe.bagua_moe.experts.bagua_experts.{name}": value for each in wanted for name, value in each.items()
        }
        alone = {"model": {name: torch.zeros_like(value) for name, value in names.items()}}
        load(alone, checkpoint_id=_folder() / "experts", no_dist=True)
        assert_same_values(alone["model"], names, "all in one process")
