"""`GradScaler` where its overflows, its scale or the optimizer that it is given are not as in a plain loop."""

from __future__ import annotations

import functools
import gc
from typing import Any
from unittest import mock

import torch
from pelton._training.data_parallel import _steps
from pelton.errors import FailedPrecondition
from pelton.torch_api.algorithms.local_sgd import LocalSGDAlgorithm
from pelton.torch_api.model_parallel.moe import MoE
from torch import nn
from torch.amp.grad_scaler import GradScaler

from cases.checks import assert_same_on_all_ranks, batch, raises, rank_and_size, seeded
from cases.programs import Net
from cases.registry import case

SCALE = 2.0**10
LAST = 6


class _Lookahead:
    """As optimizers that wrap another one are made; no torch.optim.Optimizer, so that torch calls no hook of it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self) -> Any:
        return self.inner.step()


class _LookaheadOptimizer(torch.optim.Optimizer):
    """The same as one of torch's, whose hooks are called for it, too."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.inner.step()


class _EveryOther(_Lookahead):
    """Steps at every other call only, of itself and not for an overflow."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner)
        self.calls = 0

    def step(self) -> Any:
        self.calls += 1
        return self.inner.step() if self.calls % 2 == 0 else None


def _of(model: Any, algorithm: Any) -> tuple[Any, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model.with_bagua([optimizer], algorithm), optimizer


def _train_step(model: Any, scaler: Any, optimizer: Any, step: int, overflowing: torch.Tensor | None = None) -> None:
    """One with an overflow in a gradient of this rank's, if one is given."""
    for parameter in model.parameters():
        parameter.grad = None
    found = model(batch(rank_and_size()[0], step, 8, 6))
    loss = found[0] if isinstance(found, tuple) else found
    scaler.scale(loss.square().mean()).backward()
    if overflowing is not None:
        assert overflowing.grad is not None
        overflowing.grad.view(-1)[0] = float("inf")
    scaler.step(optimizer)
    scaler.update()


def _check_counts(wrapping: Any = lambda inner: inner, skipped: int | None = 1, calls_per_step: int = 1) -> None:
    """All ranks count the step that one of them skips, and once."""
    model, inner = _of(seeded(0, Net), LocalSGDAlgorithm(4))
    optimizer, scaler = wrapping(inner), GradScaler("cpu", init_scale=SCALE)
    for call in range(8):
        here = rank_and_size()[0] == 0 and call == skipped
        _train_step(model, scaler, optimizer, call, model.first.weight if here else None)
        counted = model.bagua_ddp._rounds.steps
        assert counted == (call + 1) // calls_per_step, f"{counted} steps after {call + 1} calls"
    assert_same_on_all_ranks(list(model.parameters()))
    assert scaler.get_scale() == (SCALE / 2 if rank_and_size()[0] == 0 and skipped is not None else SCALE)
    model.bagua_ddp.detach()


@case(2)
def a_step_skipped_through_an_optimizer_that_wraps_a_given_one() -> None:
    _check_counts(_Lookahead)
    _check_counts(_LookaheadOptimizer)
    _check_counts(_EveryOther, skipped=None, calls_per_step=2)


@case(2)
def a_step_skipped_where_somebody_else_wraps_the_scalers() -> None:
    for left in list(_steps._listeners):  # models of earlier cases that are not collected yet
        _steps._drop(left)
    plain = GradScaler.step
    first, _ = _of(Net(), LocalSGDAlgorithm(4))
    ours = GradScaler.step
    assert ours is not plain

    @functools.wraps(ours)
    def foreign(*arguments: Any, **options: Any) -> Any:
        return ours(*arguments, **options)

    with mock.patch.object(GradScaler, "step", foreign):
        first.bagua_ddp.detach()
        del first
        gc.collect()
        _check_counts()
        _check_counts()
        assert GradScaler.step is foreign


def _check_left_out(model: Any, overflowing: torch.Tensor, shared: nn.Parameter, unscales: bool, apart: bool) -> None:
    """An overflow in what is left to a rank has all ranks skip, at one scale."""
    dense = [p for p in model.parameters() if p is not overflowing] if apart else list(model.parameters())
    optimizer = torch.optim.SGD(dense, lr=0.01)
    others = [torch.optim.SGD([overflowing], lr=0.01)] if apart else []
    wrapped: Any = model.with_bagua([optimizer, *others], "gradient_allreduce")
    scaler: Any = GradScaler("cpu", init_scale=SCALE)
    for step in range(4):
        before = shared.detach().clone()
        for each in (optimizer, *others):
            each.zero_grad()
        found = wrapped(batch(rank_and_size()[0], step, 8, 6))
        scaler.scale((found[0] if isinstance(found, tuple) else found).square().mean()).backward()
        if step == 1 and rank_and_size()[0] == 0:
            assert overflowing.grad is not None
            overflowing.grad.view(-1)[0] = float("inf")
        for each in (optimizer, *others):
            if unscales:
                scaler.unscale_(each)
            scaler.step(each)
        scaler.update()
        assert scaler.get_scale() == (SCALE if step < 1 else SCALE / 2), scaler.get_scale()
        assert torch.equal(before, shared) == (step == 1 and not apart)
        assert_same_on_all_ranks([shared])
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    wrapped.bagua_ddp.detach()


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.moe: Any = MoE(6, nn.Linear(6, 6), 2)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, balance, _ = self.moe(self.first(inputs))
        return hidden, balance


@case(2)
def an_overflow_in_what_is_left_to_one_rank() -> None:
    for unscales in (False, True):
        for apart in (False, True):
            model: Any = seeded(0, Net)
            model._bagua_params_and_buffers_to_ignore = ["first.bias"]
            _check_left_out(model, model.first.bias, model.second.weight, unscales, apart)
    model = seeded(0, _Experts)
    expert = model.moe.bagua_moe.experts.bagua_experts[0].bias
    _check_left_out(model, expert, model.first.weight, unscales=False, apart=False)


@case(2)
def a_scaler_with_a_scale_of_each_ranks_own() -> None:
    """It is refused where gradients are averaged, and goes on once it has rank 0's state."""
    model, optimizer = _of(seeded(0, Net), LocalSGDAlgorithm(3))
    scaler: Any = GradScaler("cpu", init_scale=SCALE)
    for step in range(LAST):
        here = rank_and_size()[0] == 0 and step == 1
        _train_step(model, scaler, optimizer, step, model.first.weight if here else None)
    model = model.with_bagua([optimizer], "gradient_allreduce")
    for _ in range(2):
        with raises(FailedPrecondition, "GradScaler.step(SGD)", "512 (4) on rank 0", "1024 (6) on rank 1", "new"):
            _train_step(model, scaler, optimizer, LAST)
    scaler.load_state_dict(scaler.state_dict() | {"scale": SCALE / 2, "_growth_tracker": 4})
    for step in range(3):
        before = model.first.weight.detach().clone()
        _train_step(model, scaler, optimizer, LAST + step)
        assert not torch.equal(before, model.first.weight)
        assert_same_on_all_ranks(list(model.parameters()))
    _train_step(model, GradScaler("cpu", init_scale=2.0), optimizer, LAST)
    assert_same_on_all_ranks(list(model.parameters()))
