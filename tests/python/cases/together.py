"""Ranks that run apart: how they come together, at the end and where the model changes in between."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.torch_api.algorithms import Algorithm
from pelton.torch_api.algorithms.async_model_average import AsyncModelAverageAlgorithm
from pelton.torch_api.algorithms.bytegrad import ByteGradAlgorithm
from pelton.torch_api.algorithms.decentralized import DecentralizedAlgorithm, LowPrecisionDecentralizedAlgorithm
from pelton.torch_api.algorithms.diloco import DiLoCoAlgorithm
from pelton.torch_api.algorithms.local_sgd import LocalSGDAlgorithm
from pelton.torch_api.algorithms.zero_one_adam import ZeroOneAdamAlgorithm, ZeroOneAdamOptimizer
from pelton.torch_api.data_parallel import DistributedDataParallel
from torch import nn

from cases.checks import SHAPE, assert_same_on_all_ranks, batch, make_mlp, rank_and_size, seeded, square_loss
from cases.registry import case
from cases.worlds import exact_mean, sgd, train_step


class _Frozen(nn.Module):
    """Two layers, the first of which is frozen at first, and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.body.requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.head(self.norm(self.body(inputs)))


def _everyones(tensor: torch.Tensor) -> list[torch.Tensor]:
    rows = torch.zeros(rank_and_size()[1], tensor.numel(), dtype=tensor.dtype)
    bagua.allgather(tensor.detach().reshape(-1).contiguous(), rows)
    return [row.view(tensor.shape).clone() for row in rows]


def _wrapped(algorithm: Algorithm, make: Callable[[], Any] = make_mlp) -> tuple[Any, torch.optim.Optimizer]:
    model = seeded(rank_and_size()[0], make)
    optimizer = sgd(model)
    return model.with_bagua([optimizer], algorithm), optimizer


@case(2, 3)
def consolidating_gives_all_ranks_the_mean() -> None:
    for algorithm in (
        DecentralizedAlgorithm(hierarchical=False, peer_selection_mode="shift_one"),
        LowPrecisionDecentralizedAlgorithm(hierarchical=False),
        LocalSGDAlgorithm(interval=4),
        DiLoCoAlgorithm(interval=4),
    ):
        model, optimizer = _wrapped(algorithm, _Frozen)
        for step in range(6):
            train_step(model, optimizer, step)
        differing = [*(p for p in model.parameters() if p.requires_grad), model.norm.running_mean]
        before = [_everyones(tensor) for tensor in differing]
        model.bagua_ddp.consolidate()
        for found, rows in zip(differing, before):
            assert torch.equal(found.detach(), exact_mean(rows)), type(algorithm).__name__
        assert_same_on_all_ranks([*model.parameters(), *model.buffers()])
        train_step(model, optimizer, 6)


@case(2)
def consolidating_merges_a_round_that_is_delayed() -> None:
    """The outer step of the round that began after step 4 is in the weights."""
    model, optimizer = _wrapped(DiLoCoAlgorithm(interval=4, delay=3))
    for step in range(5):
        train_step(model, optimizer, step)
    rounds = model.bagua_ddp.statistics()["rounds"]
    model.bagua_ddp.consolidate()
    assert model.bagua_ddp.statistics()["rounds"] == rounds + 1
    keys = {entry["key"] for entry in model.bagua_ddp.algorithm_state_dict()["tensors"]}
    assert "result of the open round" not in keys
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def consolidating_ends_what_runs_beside_and_what_is_local() -> None:
    model, optimizer = _wrapped(AsyncModelAverageAlgorithm(sync_interval_ms=1000))
    for step in range(3 + rank_and_size()[0]):  # ranks need not take equally many
        train_step(model, optimizer, step)
    model.bagua_ddp.consolidate()
    assert_same_on_all_ranks(list(model.parameters()))
    adam_model: Any = seeded(rank_and_size()[0], make_mlp)
    adam = ZeroOneAdamOptimizer(
        adam_model.parameters(), variance_freeze_step=4, doubling_steps=2, max_local_steps=8, lr=0.02
    )
    adam_model.with_bagua([adam], ZeroOneAdamAlgorithm(adam, hierarchical=False))
    for step in range(13):
        train_step(adam_model, adam, step)
    weights = [torch.stack(_everyones(p)) for p in adam_model.parameters()]
    assert any(not torch.equal(rows[0], rows[1]) for rows in weights), "the ranks are together anyway"
    adam_model.bagua_ddp.consolidate()
    moments = [adam.state[p]["exp_avg"] for p in adam_model.parameters()]
    assert_same_on_all_ranks([*adam_model.parameters(), *moments])
    train_step(adam_model, adam, 13)


@case(2)
def what_is_equal_already_is_left_alone() -> None:
    model, optimizer = _wrapped(ByteGradAlgorithm(hierarchical=False))
    train_step(model, optimizer, 0)
    before = [p.detach().clone() for p in model.parameters()]
    model.bagua_ddp.consolidate()
    assert all(map(torch.equal, before, model.parameters()))


@case(2, 3)
def thawing_a_layer_loses_no_training() -> None:
    """The ranks' weights become their mean, not rank 0's; the outer momentum and the schedule go on."""
    model, optimizer = _wrapped(DiLoCoAlgorithm(interval=6), _Frozen)
    for step in range(10):
        train_step(model, optimizer, step)
    before = model.bagua_ddp.algorithm_state_dict()
    kept = {(e["key"], e["tensor"]): e["values"] for e in before["tensors"]}
    assert any(bool(values.any()) for (key, _), values in kept.items() if key.endswith("/momentum"))
    heads, momenta = _everyones(model.head.weight), optimizer.state[model.head.weight]["momentum_buffer"].clone()
    model.body.requires_grad_(True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(batch(rank_and_size()[0], 10, *SHAPE))
    texts = [str(warning.message) for warning in caught if "registered anew" in str(warning.message)]
    assert len(texts) == 1 and "their mean" in texts[0], texts
    assert torch.equal(model.head.weight.detach(), exact_mean(heads))
    assert torch.equal(optimizer.state[model.head.weight]["momentum_buffer"], momenta)
    after = model.bagua_ddp.algorithm_state_dict()
    assert after["steps"] == before["steps"] == 10
    found = {(e["key"], e["tensor"]): e["values"] for e in after["tensors"]}
    assert {name for _, name in found} - {name for _, name in kept} == {"body.weight", "body.bias"}
    for key, values in kept.items():
        assert torch.equal(found[key][: len(values)], values[: len(found[key])]), key
    for step in range(10, 12):  # step 12 has a round of all
        train_step(model, optimizer, step)
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def a_layer_that_is_frozen_later_moves_on_all_ranks_alike() -> None:
    """The optimizer steps it by momentum, or by gradients of before, which are each rank's own."""
    rank, _ = rank_and_size()
    for accumulates in (False, True):
        for wraps_again in (False, True):
            algorithm = LocalSGDAlgorithm(interval=8)
            model, optimizer = _wrapped(algorithm, _Frozen)
            for step in range(3):
                train_step(model, optimizer, step)
            if accumulates:
                square_loss(model, batch(rank, 3, *SHAPE)).backward()
            model.head.requires_grad_(False)
            model.body.requires_grad_(True)
            if wraps_again:
                model.with_bagua([optimizer], algorithm)
            loss = square_loss(model, batch(rank, 4, *SHAPE))
            if not accumulates:
                optimizer.zero_grad(set_to_none=False)
            loss.backward()
            head = model.head.weight.detach().clone()
            optimizer.step()
            assert not torch.equal(head, model.head.weight)
            model.bagua_ddp.consolidate()
            assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def a_layer_that_is_frozen_and_has_no_gradient_takes_no_part_any_more() -> None:
    model, optimizer = _wrapped(LocalSGDAlgorithm(interval=8), _Frozen)
    train_step(model, optimizer, 0)
    model.head.requires_grad_(False)
    model.body.requires_grad_(True)
    optimizer.zero_grad()
    square_loss(model, batch(rank_and_size()[0], 1, *SHAPE)).backward()
    optimizer.step()
    names = [name for name, _ in model.bagua_ddp.bagua_build_params()]
    assert names == ["body.weight", "body.bias", "norm.weight", "norm.bias"], names
    model.bagua_ddp.consolidate()
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def thawing_a_layer_keeps_what_messages_dropped() -> None:
    model, optimizer = _wrapped(ByteGradAlgorithm(hierarchical=False, codec="one_bit"), _Frozen)
    for step in range(3):
        train_step(model, optimizer, step)
    name = "head.weight"
    state = model.bagua_ddp.algorithm_state_dict()["tensors"]
    kept = {e["key"]: e["values"] for e in state if e["tensor"] == name}
    model.body.requires_grad_(True)
    model(batch(rank_and_size()[0], 3, *SHAPE))
    state = model.bagua_ddp.algorithm_state_dict()["tensors"]
    found = {e["key"]: e["values"] for e in state if e["tensor"] == name}
    count = model.head.weight.numel()
    residuals = [key for key in kept if key.endswith("/residual")]
    assert residuals and all(torch.equal(found[key][:count], kept[key][:count]) for key in residuals)
    assert any(bool(kept[key][:count].any()) for key in residuals)


def _check_buffers_of_ranks_that_run_apart(algorithm: Algorithm) -> None:
    """Ranks take different numbers of forward passes; the class says once that buffers differ."""
    rank, _ = rank_and_size()
    module = seeded(rank, _Frozen)
    optimizer = sgd(module)
    model: Any = DistributedDataParallel(module, optimizers=[optimizer], algorithm=algorithm)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3 if rank == 0 else 9):
            optimizer.zero_grad()
            square_loss(model, batch(rank, step, *SHAPE)).backward()
            optimizer.step()
    texts = [str(warning.message) for warning in caught if "buffers stay" in str(warning.message)]
    assert len(texts) == 1 and type(algorithm).__name__.removesuffix("Algorithm") in texts[0], texts
    model.inner.consolidate()
    assert_same_on_all_ranks([*module.parameters(), *module.buffers()])


@case(2)
def buffers_do_not_keep_ranks_in_step_that_run_apart() -> None:
    _check_buffers_of_ranks_that_run_apart(AsyncModelAverageAlgorithm(sync_interval_ms=50))


@case(2)
def nor_ranks_that_avoid_stragglers() -> None:
    _check_buffers_of_ranks_that_run_apart(
        DecentralizedAlgorithm(hierarchical=False, peer_selection_mode="avoid_stragglers")
    )
