"""Checkpoints of models with experts: Bagua's own, and experts that move between ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pelton.torch_api as bagua
import torch
from pelton.torch_api.checkpoint import load_checkpoint, save_checkpoint
from pelton.torch_api.model_parallel.moe import MoE
from torch import nn

from cases.checks import batch, raises, rank_and_size, seeded
from cases.moe import HIDDEN
from cases.moe import Net as ExpertNet
from cases.registry import case
from cases.saving import KINDS, Training, assert_same_values, check_goes_on, shared_folder

MOMENTS = ("exp_avg", "exp_avg_sq")


@case(2)
def experts_go_on() -> None:
    for name in ("gradient_allreduce", "local_sgd", "decentralized", "qadam"):
        check_goes_on(name, ExpertNet)


def _expert_prefix(number: int) -> str:
    return f"moe.bagua_moe.experts.bagua_experts.{number}."


def _write_as_bagua(training: Training, folder: Path, iteration: int, is_old: bool) -> None:
    """Bagua 0.9's files of a model with experts, written with nothing but torch."""
    rank, _ = rank_and_size()
    place = folder / f"iter_{iteration:07d}"
    place.mkdir(parents=True, exist_ok=True)
    state = training.model.state_dict()
    for local in (0, 1):
        number = 2 * rank + local
        mine = {
            name.replace(_expert_prefix(local), _expert_prefix(number)): value
            for name, value in state.items()
            if name.startswith(_expert_prefix(local))
        }
        torch.save(
            mine, place / f"expert_{number}_mp_rank_00_model_states.pt", _use_new_zipfile_serialization=not is_old
        )
    optimizer = {"optimizer": training.optimizer.state_dict()}
    torch.save(optimizer, place / f"expert_parallel_rank_{rank}_mp_rank_00_optim_states.pt")
    if rank == 0:
        dense = {name: value for name, value in state.items() if "experts" not in name}
        scheduler = training.scheduler.state_dict()
        torch.save(
            {"iteration": iteration, "model": dense, "lr_scheduler": scheduler},
            place / "mp_rank_00_model_states.pt",
            _use_new_zipfile_serialization=not is_old,
        )
        (folder / "latest_checkpointed_iteration.txt").write_text(str(iteration))


@case(2)
def what_bagua_wrote_is_loaded() -> None:
    for is_old in (False, True):
        with shared_folder() as folder:
            training = Training(KINDS["gradient_allreduce"], 0, ExpertNet)
            training.steps(0, 3)
            _write_as_bagua(training, folder, 1000, is_old)
            bagua.barrier()
            other = Training(KINDS["gradient_allreduce"], 40, ExpertNet)
            assert other.load(folder) == 1000
            assert_same_values(other.values(), training.values(), "Bagua's")
            training.steps(3, 6)
            other.steps(3, 6)
            assert_same_values(other.values(), training.values(), "after Bagua's")


@case(2)
def experts_are_saved_as_bagua_saves_them() -> None:
    rank, _ = rank_and_size()
    with shared_folder() as folder, shared_folder() as theirs:
        training = Training(KINDS["gradient_allreduce"], 0, ExpertNet)
        training.steps(0, 3)
        training.save(1, folder)
        _write_as_bagua(training, theirs, 1, is_old=False)
        bagua.barrier()
        names = sorted(path.name for path in (theirs / "iter_0000001").iterdir())
        assert set(names) < {path.name for path in (folder / "iter_0000001").iterdir()}
        for name in names:
            ours, wanted = (torch.load(base / "iter_0000001" / name, weights_only=True) for base in (folder, theirs))
            if "model" in ours:  # Bagua's is ordered, and what is written above is not
                ours["model"] = dict(ours["model"])
            assert str(ours) == str(wanted), (rank, name)


def _by_expert(training: Any, size: int) -> dict[str, Any]:
    """Weights and moments of each expert of two or four ranks, and of the dense part, by names of all ranks."""
    rank = rank_and_size()[0] % size
    local = training.model.moe.num_experts // size
    state = training.optimizer.state_dict()["state"]
    found = {}
    for index, (name, parameter) in enumerate(training.model.named_parameters()):
        general = re.sub(r"experts\.(\d+)\.", lambda match: f"experts.{rank * local + int(match[1])}.", name)
        found[general] = [parameter.detach().clone(), *(state[index][key] for key in ("exp_avg", "exp_avg_sq"))]
    return found


def _adam_of_experts(local: int, group: Any, seed: int) -> Any:
    training = mock.Mock()
    training.model = seeded(seed, lambda: ExpertNet(local=local, process_group=group))
    training.optimizer = torch.optim.Adam(training.model.parameters(), 0.01)
    training.model.with_bagua([training.optimizer], "gradient_allreduce", group)
    for _ in range(3):
        training.optimizer.zero_grad()
        output, l_aux = training.model(batch(rank_and_size()[0], 0, 8, 6))
        (output.square().mean() + l_aux).backward()
        training.optimizer.step()
    return training


@case(4)
def experts_move_whole() -> None:
    """Four experts, saved by two ranks, on four, with their moments; and back on two."""
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        pairs = [bagua.new_group(pair) for pair in ([0, 1], [2, 3])]
        first = _adam_of_experts(2, pairs[rank // 2], 3 + rank)
        if rank < 2:
            save_checkpoint(1, folder, first.model, first.optimizer)
            torch.save(_by_expert(first, 2), folder / f"saved{rank}.pt")
        bagua.barrier()
        wanted: dict[str, Any] = {}
        for other in (0, 1):
            wanted.update(torch.load(folder / f"saved{other}.pt", weights_only=True))
        spread = _adam_of_experts(1, bagua.new_group(), 40 + rank)
        assert load_checkpoint(folder, spread.model, spread.optimizer) == 1
        _assert_experts(_by_expert(spread, 4), wanted, 1)
        save_checkpoint(2, folder, spread.model, spread.optimizer)
        if rank < 2:
            back = _adam_of_experts(2, pairs[0], 60 + rank)
            assert load_checkpoint(folder, back.model, back.optimizer) == 2
            _assert_experts(_by_expert(back, 2), wanted, 2)
        bagua.barrier()


def _assert_experts(found: dict[str, Any], wanted: dict[str, Any], local: int) -> None:
    assert len([name for name in found if "experts." in name]) == 4 * local, list(found)
    for name, tensors in found.items():
        for mine, saved in zip(tensors, wanted[name], strict=True):
            assert torch.equal(mine, saved), name


@case(2)
def experts_of_another_number_of_ranks_are_refused() -> None:
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        training = Training(KINDS["gradient_allreduce"], 0, ExpertNet)
        training.save(1, folder)
        groups = [bagua.new_group([0]), bagua.new_group([1])]
        model = ExpertNet(process_group=groups[rank])
        model.with_bagua([], "gradient_allreduce", groups[rank])  # type: ignore[operator]
        with raises(ValueError, "holds 4 experts, this model has 2 on all ranks together"):
            load_checkpoint(folder, model)
        more = ExpertNet(local=3)
        more.with_bagua([], "gradient_allreduce")  # type: ignore[operator]
        with raises(ValueError, "holds 4 experts, this model has 6 on all ranks together"):
            load_checkpoint(folder, more)


class TwoLayers(nn.Module):
    """Four experts and two, on all ranks together. Threads: the test's. Owns: its layers."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.size = size = len(group.ranks)
        self.dense = nn.Linear(HIDDEN, HIDDEN)
        self.many = MoE(HIDDEN, nn.Linear(HIDDEN, HIDDEN), 4 // size, min_capacity=0, process_group=group)
        self.few = MoE(HIDDEN, nn.Linear(HIDDEN, HIDDEN), 2 // size, min_capacity=0, process_group=group)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden, first_loss, _ = self.many(self.dense(inputs).tanh())
        output, second_loss, _ = self.few(hidden)
        loss: torch.Tensor = output.square().mean() + first_loss + second_loss
        return loss

    def known(self, optimizer: torch.optim.Optimizer) -> dict[str, list[torch.Tensor]]:
        """Weights and moments by names of all ranks."""
        found = {}
        for name, parameter in self.named_parameters():
            state = optimizer.state[parameter]
            found[self._general(name)] = [parameter.detach().clone(), *(state[key].clone() for key in MOMENTS)]
        return found

    def _general(self, name: str) -> str:
        local = (self.many if name.startswith("many") else self.few).num_experts // self.size
        first = rank_and_size()[0] % self.size * local
        return re.sub(r"experts\.(\d+)\.", lambda match: f"experts.{first + int(match[1])}.", name)


def _trained(group: Any, seed: int) -> tuple[Any, torch.optim.Adam, nn.Parameter]:
    """Three steps of a rank's own, also of a parameter that is not the model's."""
    model: Any = seeded(seed, lambda: TwoLayers(group))
    outside = nn.Parameter(torch.full((3,), float(seed)))
    optimizer = torch.optim.Adam([*model.parameters(), outside], 0.01)
    model.with_bagua([optimizer], "decentralized", group)
    for step in range(3):
        optimizer.zero_grad()
        (model(batch(rank_and_size()[0], step, 8, HIDDEN)) + outside.square().sum()).backward()
        optimizer.step()
    return model, optimizer, outside


@case(2)
def layers_of_different_sizes_move_and_what_is_dense_is_the_mean() -> None:
    """Saved by two ranks, loaded by one, and by two from rank 0's alone."""
    rank, size = rank_and_size()
    with shared_folder() as folder:
        model, optimizer, outside = _trained(bagua.new_group(), 3 + rank)
        save_checkpoint(1, folder, model, optimizer)
        moment = optimizer.state[outside]["exp_avg"].clone()
        torch.save((model.known(optimizer), moment), folder / f"saved{rank}.pt")
        bagua.barrier()
        saved = [torch.load(folder / f"saved{other}.pt", weights_only=True) for other in range(size)]
        groups = [bagua.new_group([other]) for other in range(size)]
        alone, own, beside = _trained(groups[rank], 40 + rank)
        assert load_checkpoint(folder, alone, own) == 1
        for name, found in alone.known(own).items():
            for i, tensor in enumerate(found):
                values = [known[name][i] for known, _ in saved if name in known]
                torch.testing.assert_close(tensor, sum(values) / len(values), msg=f"{name} {i}")
        torch.testing.assert_close(own.state[beside]["exp_avg"], (saved[0][1] + saved[1][1]) / 2)
        again, its, mine = _trained(bagua.new_group(), 60 + rank)
        assert load_checkpoint(folder, again, its, algorithm_state=False) == 1
        assert torch.equal(its.state[mine]["exp_avg"], saved[0][1])


@case(2)
def parameters_outside_the_model_are_as_many_as_were_saved() -> None:
    with shared_folder() as folder:
        model, optimizer, _ = _trained(bagua.new_group(), 3)
        save_checkpoint(1, folder, model, optimizer)
        model.bagua_ddp.detach()
        other: Any = seeded(4, lambda: TwoLayers(bagua.new_group()))
        plain = torch.optim.Adam(other.parameters(), 0.01)
        other.with_bagua([plain], "decentralized")
        with raises(ValueError, "1 parameters that are not the model's were saved, these are 0"):
            load_checkpoint(folder, other, plain, algorithm_state=False)


@case(2)
def another_algorithms_checkpoint_says_so() -> None:
    with shared_folder() as folder:
        model: Any = nn.Linear(3, 2)
        save_checkpoint(1, folder, model.with_bagua([], "gradient_allreduce"))
        for name in ("local_sgd", "decentralized"):
            other: Any = nn.Linear(3, 2)
            optimizer = torch.optim.SGD(other.parameters(), 0.1)
            other.with_bagua([optimizer], name)
            with raises(ValueError, "it is that of gradient_allreduce", "algorithm_state=False"):
                load_checkpoint(folder, other)


@case(2)
def a_path_that_is_none_on_one_rank_is_an_error_on_all() -> None:
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        model: Any = nn.Linear(3, 2)
        model.with_bagua([], "gradient_allreduce")
        for function in (lambda path: save_checkpoint(1, path, model), lambda path: load_checkpoint(path, model)):
            with raises(ValueError, "checkpoints_path=None: must be the path of a folder"):
                function(None if rank == 1 else folder)
