"""Jobs that go on with another number of ranks: weights, optimizers and what the algorithm remembers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.algorithms.bytegrad import ByteGradAlgorithm
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm, GradientAllReduceAlgorithmImpl
from pelton.torch_api.checkpoint import load_checkpoint, save_checkpoint

from cases.checks import batch, raises, rank_and_size, seeded
from cases.programs import Kind
from cases.registry import case
from cases.saving import KINDS, Net, Training, shared_folder

HELD_BACK = ("/residual", "/error")  # how the keys of what error feedback holds back end
_BY_GROUP: dict[int, Any] = {}

MORE = {
    **KINDS,
    "encoded outer steps": Kind("diloco", {"interval": 2, "hierarchical": False, "codec": "one_bit"}),
    "encoded ring": Kind("low_precision_decentralized", {"hierarchical": False, "codec": "one_bit"}),
}


def first_ranks(size: int) -> Any:
    """The group of the first ranks; asked for by all."""
    if size not in _BY_GROUP:
        _BY_GROUP[size] = bagua.new_group(list(range(size)))
    return _BY_GROUP[size]


def everyones(mine: Any, size: int) -> list[Any]:
    """What the first ranks have, by rank; on all ranks."""
    return [bagua.broadcast_object(mine, src=rank) for rank in range(size)]


def held_back(states: Sequence[dict[str, Any]]) -> dict[tuple[str, str], torch.Tensor]:
    """The means over the ranks, by key and tensor."""
    found: dict[tuple[str, str], list[torch.Tensor]] = {}
    for state in states:
        for entry in state["tensors"]:
            if entry["key"].endswith(HELD_BACK):
                found.setdefault((entry["key"], entry["tensor"]), []).append(entry["values"].double())
    return {name: torch.stack(values).mean(0) for name, values in found.items()}


def check_held_back(found: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]], what: str) -> None:
    after = held_back(found)
    counts = {name: parameter.numel() for name, parameter in Net().named_parameters()}
    for name, values in held_back(wanted).items():
        count = counts[name[1]]  # behind it is a gap
        torch.testing.assert_close(after[name][:count], values[:count], rtol=1e-6, atol=1e-9, msg=f"{what}: {name}")


def mean_of(values: Sequence[torch.Tensor]) -> torch.Tensor:
    first = values[0]
    if not first.is_floating_point() or first.dim() == 0:
        return first
    return torch.stack([value.double() for value in values]).mean(0).to(first.dtype)


def saved_by(name: str, size: int, folder: Path) -> tuple[list[Any], list[Any]]:
    """Trains and saves on the first ranks.

    Returns:
      Values and algorithms' states of those, by rank; on all ranks.
    """
    group = first_ranks(size)
    values, state = None, None
    if rank_and_size()[0] < size:
        training = Training(MORE[name], 0, group=group)
        training.steps(0, 5)
        training.save(5, folder)
        values, state = training.values(), training.model.bagua_ddp.algorithm_state_dict()
        training.model.bagua_ddp.detach()
    bagua.barrier()
    return everyones(values, size), everyones(state, size)


def check_goes_on(name: str, before: int, after: int) -> None:
    """From as many ranks to as many."""
    what = f"{name} from {before} to {after}"
    rank, _ = rank_and_size()
    group = first_ranks(after)
    with shared_folder() as folder:
        values, states = saved_by(name, before, folder)
        state = None
        if rank < after:
            training = Training(MORE[name], 70, group=group)
            training.steps(33, 34)  # leaves something that must not stay
            assert training.load(folder) == 5, what
            for key, value in training.values().items():
                if isinstance(value, torch.Tensor):
                    wanted = mean_of([mine[key] for mine in values])
                    torch.testing.assert_close(value, wanted, rtol=1e-6, atol=1e-8, msg=f"{what}: {key}")
            state = training.model.bagua_ddp.algorithm_state_dict()
            training.steps(5, 9)
            assert all(torch.isfinite(p).all() for p in training.model.parameters()), what
            training.model.bagua_ddp.detach()
        check_held_back(everyones(state, after), states, what)


@case(4)
def every_algorithm_goes_on_with_another_number_of_ranks() -> None:
    for name in MORE:
        check_goes_on(name, 4, 2)
        check_goes_on(name, 2, 4)


@case(4)
def one_rank_and_odd_numbers() -> None:
    for name in ("one bit", "power_sgd", "diloco", "encoded outer steps", "encoded ring"):
        check_goes_on(name, 3, 1)
        check_goes_on(name, 1, 3)


@case(1)
def what_one_rank_saved_before_it_kept_anything_for_more_is_loaded() -> None:
    """In format 3, which had no place for what error feedback holds back in a larger group."""
    training = Training(KINDS["power_sgd"], 0)
    training.steps(0, 3)
    state = training.model.bagua_ddp.algorithm_state_dict()
    assert state["format"] == 4 and state["tensors"]
    training.model.bagua_ddp.load_algorithm_state_dict({**state, "format": 3, "tensors": []})
    found = training.model.bagua_ddp.algorithm_state_dict()
    assert (found["rounds"], found["order"]) == (state["rounds"], state["order"]), found
    with raises(ValueError, "the state lacks it"):
        training.model.bagua_ddp.load_algorithm_state_dict({**state, "tensors": []})
    training.steps(3, 5)
    training.model.bagua_ddp.detach()


def _remembering() -> Algorithm:
    return ByteGradAlgorithm(hierarchical=False, codec="one_bit")


@case(3)
def what_does_not_belong_together_is_refused() -> None:
    rank, _ = rank_and_size()
    group, states = first_ranks(2), None
    if rank < 2:
        training = Training(KINDS["one bit"], 0, group=group)
        training.steps(0, 2)
        states = training.model.bagua_ddp.algorithm_state_dict()
        training.model.bagua_ddp.detach()
    both = everyones(states, 2)
    model: Any = seeded(rank, Net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inner = model.with_bagua([optimizer], _remembering()).bagua_ddp
    with raises(ValueError, "rank 0 of 2", f"this is rank {rank} of 3", "list of all 2 ranks' states"):
        inner.load_algorithm_state_dict(both[0])
    with raises(ValueError, "number 0 of the 2 is that of rank 1 of 2"):
        inner.load_algorithm_state_dict(both[::-1])
    with raises(ValueError, "number 0 of the 1 is that of rank 0 of 2"):
        inner.load_algorithm_state_dict(both[:1])
    with raises(ValueError, "an empty list"):
        inner.load_algorithm_state_dict([])
    other = {**both[1], "order": list(reversed(both[1]["order"]))}
    if both[1]["order"]:
        with raises(ValueError, "rank 1's is of another algorithm or another plan"):
            inner.load_algorithm_state_dict([both[0], other])
    inner.load_algorithm_state_dict(both)
    model(batch(rank, 0, 8, 6)).square().mean().backward()
    with torch.no_grad():
        model.layers[0].bias.add_(rank)
    with raises(ValueError, "layers.0.bias", "ranks 1, 2"):
        inner.load_algorithm_state_dict(both)
    inner.detach()


class _OwnImpl(GradientAllReduceAlgorithmImpl):
    """Remembers its rank. Threads: the trainer's. Owns: a number."""

    def state_dict(self) -> dict[str, Any]:
        return {"rank": rank_and_size()[0]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass

    def registered(self) -> None:  # type: ignore[override]
        return None


class _Own(GradientAllReduceAlgorithm):
    def reify(self, process_group: Any) -> _OwnImpl:
        return _OwnImpl(process_group)


@case(2)
def what_python_remembers_of_each_rank_is_refused() -> None:
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        alone = first_ranks(1)
        model: Any = seeded(rank, Net)
        save_checkpoint(3, folder, model.with_bagua([], _Own()))
        if rank == 0:
            single: Any = seeded(9, Net)
            single.with_bagua([], _Own(), alone)
            with raises(ValueError, "_OwnImpl is written in Python", "algorithm_state=False"):
                load_checkpoint(folder, single)
            assert load_checkpoint(folder, single, algorithm_state=False) == 3
            single.bagua_ddp.detach()
        bagua.barrier()
