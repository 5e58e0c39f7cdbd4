"""PyTorch's own checkpoints of wrapped models: torch.distributed.checkpoint over Pelton's backend, and DDP's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from pelton.torch_api.checkpoint.planners import LoadPlanner, SavePlanner
from pelton.torch_api.data_parallel import DistributedDataParallel
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from cases.checks import batch, raises, rank_and_size, seeded
from cases.moe import Net as ExpertNet
from cases.registry import case
from cases.saving import Net, assert_same_values, shared_folder
from cases.saving_experts import TwoLayers
from cases.torch_world import beside_gloo, torch_world


class Training:
    """A wrapped model and its Adam. Threads: the test's. Owns: them."""

    def __init__(self, seed: int, make: Callable[[], Any] = Net, algorithm: str = "gradient_allreduce") -> None:
        rank, _ = rank_and_size()
        plain = seeded(seed + rank, make)
        names = list(plain.state_dict())
        self.optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
        self.model: Any = plain.with_bagua([self.optimizer], algorithm)
        assert list(self.model.state_dict()) == names

    def steps(self, begin: int, end: int) -> None:
        rank, _ = rank_and_size()
        for step in range(begin, end):
            self.optimizer.zero_grad()
            torch.manual_seed(31 * step + rank)
            found = self.model(batch(rank, step, 8, 6))
            outputs, balance = found if isinstance(found, tuple) else (found, 0)
            (outputs.square().mean() + balance).backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load(self, folder: Path, **options: Any) -> None:
        state = self.state()
        load(state, checkpoint_id=folder, **options)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def values(self) -> dict[str, Any]:
        """Without statistics, which are each rank's own: of such a tensor one rank's is saved."""
        found = {name: value.clone() for name, value in self.model.named_parameters()}
        for index, state in self.optimizer.state_dict()["state"].items():
            found.update({f"{index} {name}": value.clone() for name, value in state.items()})
        return found


@case(2, 4)
def saved_and_loaded() -> None:
    with torch_world(), shared_folder() as folder:
        training = Training(0)
        training.steps(0, 3)
        save(training.state(), checkpoint_id=folder)
        wanted = training.values()
        other = Training(50)
        other.load(folder)
        assert_same_values(other.values(), wanted, "loaded")
        for each in (training, other):
            each.steps(3, 6)
        assert_same_values(other.values(), training.values(), "resumed")


@case(2)
def saved_while_training_goes_on() -> None:
    with torch_world(), shared_folder() as folder:
        training = Training(0)
        training.steps(0, 3)
        wanted = training.values()
        saving: Any = async_save(training.state(), checkpoint_id=folder)
        training.steps(3, 9)
        saving.result()
        other = Training(50)
        other.load(folder)
        assert_same_values(other.values(), wanted, "as it was when saving began")


@case(4)
def half_of_the_ranks_load() -> None:
    """In a group of their own."""
    rank, _ = rank_and_size()
    with torch_world(), shared_folder() as folder:
        training = Training(0)
        training.steps(0, 3)
        save(training.state(), checkpoint_id=folder)
        wanted = training.values()
        half = dist.new_group([0, 1])
        other = Training(50)
        if rank < 2:
            other.load(folder, process_group=half)
            assert_same_values(other.values(), wanted, "two of four")
        bagua.barrier()


_NAMES_ALIKE = ("bagua_experts.0", "same name", "SavePlanner()", "LoadPlanner()")


@case(2)
def experts_are_not_mixed_without_a_word() -> None:
    with torch_world(), shared_folder() as folder:
        training = Training(0, ExpertNet)
        training.steps(0, 2)
        for state in (training.state(), {"model": training.model.state_dict()}):
            with raises(CheckpointException, *_NAMES_ALIKE):
                save(state, checkpoint_id=folder / "mixed")
        with raises(CheckpointException, *_NAMES_ALIKE):
            async_save(training.state(), checkpoint_id=folder / "mixed").result()  # type: ignore[union-attr]
        save(training.state(), checkpoint_id=folder / "saved", planner=SavePlanner())
        with raises(CheckpointException, *_NAMES_ALIKE):
            training.load(folder / "saved")


@case(2, 3)
def experts_are_saved_and_loaded() -> None:
    with torch_world(), shared_folder() as folder:
        training = Training(0, ExpertNet)
        training.steps(0, 3)
        wanted = training.values()
        saving: Any = async_save(training.state(), checkpoint_id=folder, planner=SavePlanner())
        training.steps(3, 6)
        saving.result()
        other = Training(50, ExpertNet)
        other.load(folder, planner=LoadPlanner())
        assert_same_values(other.values(), wanted, "loaded")
        other.steps(3, 6)
        assert_same_values(other.values(), training.values(), "resumed")


@case(2)
def what_may_differ_is_told_of_and_kept_by_rank() -> None:
    rank, _ = rank_and_size()
    for algorithm in ("decentralized", "local_sgd"):
        with torch_world(), shared_folder() as folder:
            training = Training(0, Net, algorithm)
            training.steps(0, 3)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                save(training.state(), checkpoint_id=folder / "one")
            assert sum("SavePlanner(per_rank=True)" in str(each.message) for each in told) == (rank == 0)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                save(training.state(), checkpoint_id=folder / "all", planner=SavePlanner(per_rank=True))
            assert not any("SavePlanner" in str(each.message) for each in told)
            other = Training(50, Net, algorithm)
            other.load(folder / "all", planner=LoadPlanner(per_rank=True))
            assert_same_values(other.values(), training.values(), algorithm)
            assert_same_values(dict(other.model.named_buffers()), dict(training.model.named_buffers()), "statistics")


def _weights(model: nn.Module) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.state_dict().items() if "running" not in name}


@case(2)
def ddps_checkpoints_and_ours_are_the_same() -> None:
    """A state_dict of torch's DistributedDataParallel in a wrapped model, and the other way round."""
    rank, _ = rank_and_size()
    with beside_gloo() as gloo:
        theirs = TorchDDP(seeded(rank, Net), process_group=gloo)
        theirs(batch(rank, 0, 8, 6)).square().mean().backward()
        torch.optim.SGD(theirs.parameters(), 0.1).step()
        state = theirs.state_dict()
        ours: Any = DistributedDataParallel(seeded(40 + rank, Net))
        ours.load_state_dict(state)
        assert_same_values(_weights(ours), _weights(theirs), "ours of torch's")
        wrapped: Any = seeded(60 + rank, Net).with_bagua([], "gradient_allreduce")
        wrapped.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
        assert_same_values(_weights(wrapped), _weights(theirs.module), "a wrapped one of torch's")
        for model in (ours, wrapped):
            model(batch(rank, 1, 8, 6)).square().mean().backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
        back = TorchDDP(seeded(80 + rank, Net), process_group=gloo)
        back.load_state_dict(ours.state_dict())
        assert_same_values(_weights(back), _weights(ours), "torch's of ours")
        back.module.load_state_dict(wrapped.state_dict())
        assert_same_values(_weights(back.module), _weights(wrapped), "torch's of a wrapped one")


@case(2)
def layers_of_different_sizes_are_numbered_each_by_itself() -> None:
    """Of the layer with fewer experts no number is left out, so that another number of ranks finds them."""
    rank, _ = rank_and_size()
    with shared_folder() as folder, torch_world():
        model: Any = seeded(3 + rank, lambda: TwoLayers(bagua.new_group()))
        save({"model": model.state_dict()}, checkpoint_id=folder / "two", planner=SavePlanner())
        wanted = {}
        for name, value in model.state_dict().items():
            if "experts." in name:
                local = 2 if name.startswith("many") else 1
                number = rank * local + int(name.split("bagua_experts.")[1].split(".")[0])
                wanted[re.sub(r"bagua_experts\.\d+", f"bagua_experts.{number}", name)] = value
        assert len(wanted) == 2 * 3
        found = {"model": {name: torch.zeros_like(value) for name, value in wanted.items()}}
        load(found, checkpoint_id=folder / "two", no_dist=True)
        assert_same_values(found["model"], wanted, "experts by their numbers among all")
