"""Adams whose first moments are averaged over the ranks: exact where nothing is encoded, close where it is."""

from __future__ import annotations

import contextlib
import copy
import math
import unittest.mock
from collections.abc import Callable
from typing import Any

import torch
from pelton._training.algorithms import _pieces
from pelton.torch_api.algorithms.one_bit_adam import OneBitAdamAlgorithm, OneBitAdamOptimizer
from pelton.torch_api.algorithms.q_adam import QAdamAlgorithm, QAdamOptimizer
from pelton.torch_api.algorithms.zero_one_adam import ZeroOneAdamAlgorithm, ZeroOneAdamOptimizer
from torch import nn

from cases.checks import (
    SHAPE,
    assert_same_on_all_ranks,
    batch,
    expected,
    local_gradients,
    make_mlp,
    mean_of,
    raises,
    rank_and_size,
    seeded,
    square_loss,
)
from cases.registry import case
from cases.worlds import Make, assert_weights, exact_mean, run, train_step

WARM_UP = 4
BETAS = (0.8, 0.99)


BAGUAS: dict[str, Any] = {"freeze_variance_correction": False, "variance_floor": 0.0}


def _qadam(model: Any, **options: Any) -> QAdamOptimizer:
    """By Bagua's formula unless told otherwise."""
    return QAdamOptimizer(model.parameters(), lr=0.05, warmup_steps=WARM_UP, betas=BETAS, **BAGUAS | options)


def _travelled(first: torch.Tensor, gradients: list[Any]) -> torch.Tensor:
    """The mean gradient as the ranks have it after a round of momenta in full precision; None: no gradient there."""
    beta1 = BETAS[0]
    moments = [first * beta1 if g is None else first.lerp(g, 1 - beta1) for g in gradients]
    return first.lerp(exact_mean(moments), 1 / (1 - beta1))


def _wrapped(make: Make = make_mlp, hierarchical: bool = True, **options: Any) -> tuple[Any, QAdamOptimizer]:
    """On one host nothing is encoded with `hierarchical`."""
    model = seeded(rank_and_size()[0], make)
    optimizer = _qadam(model, **options)
    return model.with_bagua([optimizer], QAdamAlgorithm(optimizer, hierarchical=hierarchical)), optimizer


@case(1, 2, 3)
def qadam_warms_up_as_adam() -> None:
    """Bitwise torch's Adam on the mean gradients: moments before the step WARM_UP, weights with them."""
    _, size = rank_and_size()
    model, optimizer = _wrapped(weight_decay=0.1)
    reference = seeded(0, make_mlp)
    adam = torch.optim.Adam(reference.parameters(), lr=0.05, betas=BETAS, weight_decay=0.1, foreach=False)
    for step in range(WARM_UP - 1):
        means = mean_of([local_gradients(reference, batch(r, step, *SHAPE)) for r in range(size)])
        for name, parameter in reference.named_parameters():
            parameter.grad = means[name]
        adam.step()
        train_step(model, optimizer, step)
        for mine, theirs in zip(model.parameters(), reference.parameters()):
            assert torch.equal(optimizer.state[mine]["exp_avg"], adam.state[theirs]["exp_avg"])
            assert torch.equal(optimizer.state[mine]["exp_avg_sq"], adam.state[theirs]["exp_avg_sq"])
        assert_weights(model, list(reference.parameters()))


def _steps(make: Make, parts: int, make_optimizer: Callable[[Any], torch.optim.Optimizer]) -> list[torch.Tensor]:
    """What six steps on given gradients make of a model, in pieces of so many elements."""
    model = seeded(0, make)
    generator = torch.Generator().manual_seed(1)
    optimizer = make_optimizer(model)
    with unittest.mock.patch.object(_pieces, "PIECE_ELEMENTS", parts):
        for _ in range(6):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)
            optimizer.step()
    return [tensor for p in model.parameters() for tensor in (p.detach(), *_tensors(optimizer.state[p]))]


def _tensors(state: Any) -> list[torch.Tensor]:
    return [value for value in state.values() if isinstance(value, torch.Tensor)]


def _make_channels_last() -> Any:
    images: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 5))
    return images.to(memory_format=torch.channels_last)


@case(1)
def steps_in_pieces_are_those_of_whole_tensors() -> None:
    """Bitwise, whatever the tensors' dtype and strides."""
    optimizers: list[Callable[[Any], torch.optim.Optimizer]] = [
        _qadam,
        lambda model: OneBitAdamOptimizer(model.parameters(), warmup_steps=WARM_UP, weight_decay=0.1),
        lambda model: ZeroOneAdamOptimizer(model.parameters(), weight_decay=0.1, variance_freeze_step=3),
    ]
    for make in (make_mlp, _make_channels_last, lambda: make_mlp().bfloat16()):
        for optimizer in optimizers:
            whole = _steps(make, 1 << 20, optimizer)
            for parts in (1, 7, 64):
                for found, wanted in zip(_steps(make, parts, optimizer), whole, strict=True):
                    assert torch.equal(found, wanted)


@case(1)
def sixteen_bit_moments_decay_as_those_of_adam() -> None:
    """0.999 is 1 in bfloat16: a factor must not be rounded to the tensors' dtype."""

    def _long(model: Any) -> torch.optim.Optimizer:
        return QAdamOptimizer(model.parameters(), warmup_steps=9, **BAGUAS)

    ours = _steps(lambda: make_mlp().bfloat16(), 7, _long)
    theirs = _steps(lambda: make_mlp().bfloat16(), 7, lambda model: torch.optim.Adam(model.parameters(), foreach=False))
    for found, wanted in zip(ours[2::3], theirs[3::4], strict=True):
        assert torch.equal(found, wanted)


class _Reference:
    """QAdam in one process: one model, since all ranks hold the same."""

    def __init__(self, make: Make, corrected_steps: int = 10**6) -> None:
        self.model = seeded(0, make)
        self.corrected_steps = corrected_steps  # of the second moment's bias
        self.first = [torch.zeros_like(p) for p in self.model.parameters()]
        self.second = [torch.zeros_like(p) for p in self.model.parameters()]

    def step(self, step: int) -> None:
        """Step number `step`, from 1."""
        _, size = rank_and_size()
        local = [local_gradients(self.model, _batch(self.model, r, step - 1)) for r in range(size)]
        means = mean_of(local)
        lr, (beta1, beta2) = 0.05, BETAS
        for i, (name, parameter) in enumerate(self.model.named_parameters()):
            if step < WARM_UP:
                self.first[i].lerp_(means[name], 1 - beta1)
                self.second[i].mul_(beta2).addcmul_(means[name], means[name], value=1 - beta2)
            elif step > WARM_UP:
                mean = _travelled(self.first[i], [found[name] for found in local])
                self.first[i] = self.first[i].lerp(mean, 1 - beta1)
            denominator = (self.second[i].sqrt() / math.sqrt(1 - beta2 ** min(step, self.corrected_steps))).add_(1e-8)
            with torch.no_grad():
                parameter.addcdiv_(self.first[i], denominator, value=-lr / (1 - beta1**step))


def _batch(model: Any, rank: int, step: int) -> torch.Tensor:
    return batch(rank, step, *SHAPE, dtype=next(model.parameters()).dtype)


def _check_qadam(make: Make, corrected_steps: int = 10**6, **options: Any) -> None:
    model, optimizer = _wrapped(make, **options)
    reference = _Reference(make, corrected_steps)
    for step in range(1, 2 * WARM_UP + 1):
        train_step(model, optimizer, step - 1)
        reference.step(step)
        assert_weights(model, [p.detach() for p in reference.model.parameters()])
    moments = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    for moment, wanted in zip(moments, reference.first):
        assert torch.equal(moment, wanted)
    assert_same_on_all_ranks(moments)


@case(1, 2, 3, 4)
def qadam_equals_one_process() -> None:
    _check_qadam(make_mlp)


@case(2)
def qadam_in_bfloat16_equals_one_process() -> None:
    _check_qadam(lambda: make_mlp().bfloat16())


@case(2)
def qadam_in_float64_equals_one_process() -> None:
    _check_qadam(lambda: make_mlp().double())


@case(2)
def qadam_can_stop_correcting_a_variance_that_stands_still() -> None:
    _check_qadam(make_mlp, corrected_steps=WARM_UP - 1, freeze_variance_correction=True)


@case(1)
def tiny_variances_are_raised_once() -> None:
    """To a share of their tensor's mean, when they are updated no more; where nothing was, it stays so with signs."""
    kinds = ((QAdamOptimizer, WARM_UP - 1, 0.25125), (OneBitAdamOptimizer, WARM_UP, 0.0))
    for kind, updates, zero_becomes in kinds:
        weights = nn.Parameter(torch.ones(4))
        optimizer: Any = kind([weights], warmup_steps=WARM_UP, variance_floor=0.5)
        weights.grad = torch.tensor([0.0, 0.1, 1.0, 1.0])
        for _ in range(updates):
            optimizer.step()
        second = optimizer.state[weights]["exp_avg_sq"]
        before = second / second[3]
        for _ in range(2):
            optimizer.step()
        assert torch.allclose(before, torch.tensor([0.0, 0.01, 1.0, 1.0])), before
        wanted = torch.tensor([zero_becomes, 0.25125, 1.0, 1.0])
        assert torch.allclose(second / second[3], wanted), (kind, second / second[3])


@case(1)
def zero_one_adam_keeps_tiny_variances_raised() -> None:
    weights = nn.Parameter(torch.ones(4))
    optimizer = ZeroOneAdamOptimizer([weights], variance_freeze_step=3, variance_floor=0.5)
    weights.grad = torch.tensor([0.0, 0.1, 1.0, 1.0])
    for _ in range(4):
        optimizer.step()
        second = optimizer.state[weights]["exp_avg_sq"]
        assert second[0] == 0
        assert 0.25 < second[1] / second[3] < 0.29, second  # the mean is of raised elements, too


@case(2, 3)
def encoded_moments_are_the_same_on_all_ranks_and_close() -> None:
    model, optimizer = _wrapped(hierarchical=False)
    reference = _Reference(make_mlp)
    for step in range(1, 2 * WARM_UP + 1):
        train_step(model, optimizer, step - 1)
        reference.step(step)
    assert_weights(model, [p.detach() for p in reference.model.parameters()], tolerance=0.1)
    assert_same_on_all_ranks([optimizer.state[p]["exp_avg"] for p in model.parameters()])
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def the_gradient_becomes_the_mean() -> None:
    """As it has travelled with the moment; nothing but the step changes that, so that a step may be left out."""
    model, optimizer = _wrapped()
    for step in range(WARM_UP):
        train_step(model, optimizer, step)
    rank, size = rank_and_size()
    plain = copy.deepcopy(model)
    local = [local_gradients(plain, batch(r, 50, *SHAPE)) for r in range(size)]
    moments = {name: optimizer.state[p]["exp_avg"].clone() for name, p in model.named_parameters()}
    optimizer.zero_grad()
    run(model, rank, 50)
    for name, parameter in model.named_parameters():
        assert torch.equal(optimizer.state[parameter]["exp_avg"], moments[name]), name
        assert torch.equal(parameter.grad, _travelled(moments[name], [found[name] for found in local])), name
    assert model.bagua_algorithm.optimizer_step_id == WARM_UP


class _Branches(nn.Module):
    """A layer for all, one for odd ranks and one for nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.common, self.odd, self.idle = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)
        self.use_odd = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out = self.common(inputs)
        return out + self.odd(inputs) if self.use_odd else out


@case(2, 3)
def unused_parameters_have_a_zero_gradient() -> None:
    rank, size = rank_and_size()
    model, optimizer = _wrapped(_Branches)
    for step in range(WARM_UP):
        model.use_odd = True
        train_step(model, optimizer, step)
    plain = copy.deepcopy(model)
    before = optimizer.state[model.odd.weight]["exp_avg"].clone()
    idle = model.idle.weight.detach().clone()
    everyones = []
    for r in range(size):
        plain.use_odd = r % 2 == 1
        everyones.append(local_gradients(plain, batch(r, 9, *SHAPE))["odd.weight"] if r % 2 == 1 else None)
    model.use_odd = rank % 2 == 1
    train_step(model, optimizer, 9)
    wanted = before.lerp(_travelled(before, everyones), 1 - BETAS[0])
    assert torch.equal(optimizer.state[model.odd.weight]["exp_avg"], wanted)
    assert model.idle.weight.grad is None
    assert torch.equal(model.idle.weight, idle)
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def micro_batches_are_added_up() -> None:
    """Inside `no_sync` and without it: the moment is that of the sum, once."""
    rank, size = rank_and_size()
    for is_local in (True, False):
        model, optimizer = _wrapped()
        for step in range(WARM_UP):
            train_step(model, optimizer, step)
        plain = copy.deepcopy(model)
        both = [[local_gradients(plain, batch(r, step, *SHAPE))["0.weight"] for r in range(size)] for step in (20, 21)]
        wanted = exact_mean(both[0]) + exact_mean(both[1])
        optimizer.zero_grad()
        with model.no_sync() if is_local else contextlib.nullcontext():
            run(model, rank, 20)
        run(model, rank, 21)
        assert torch.allclose(model[0].weight.grad, wanted, rtol=1e-5, atol=1e-6)
        assert_same_on_all_ranks([model[0].weight.grad])


@case(2)
def moments_that_were_replaced_are_registered_again() -> None:
    model, optimizer = _wrapped()
    reference = _Reference(make_mlp)
    for step in range(1, 2 * WARM_UP + 1):
        if step == WARM_UP + 3:
            optimizer.load_state_dict(optimizer.state_dict())
        train_step(model, optimizer, step - 1)
        reference.step(step)
    assert_weights(model, [p.detach() for p in reference.model.parameters()])


@case(2, 3)
def one_bit_adam_keeps_the_ranks_together_and_learns() -> None:
    rank, _ = rank_and_size()
    model = seeded(rank, _Branches)
    optimizer = OneBitAdamOptimizer(model.parameters(), lr=0.02, warmup_steps=WARM_UP, weight_decay=0.01)
    model.with_bagua([optimizer], OneBitAdamAlgorithm(optimizer, hierarchical=False))
    first = float(square_loss(model, batch(rank, 0, *SHAPE)).detach())
    idle = model.idle.weight.detach().clone()
    for step in range(40):
        train_step(model, optimizer, step % 4)
    assert_same_on_all_ranks(list(model.parameters()))
    assert torch.equal(model.idle.weight, idle), "a parameter without gradients moved"
    assert float(square_loss(model, batch(rank, 0, *SHAPE)).detach()) < 0.5 * first


@case(1, 2, 3)
def zero_one_adam_without_codec_equals_adam() -> None:
    """While all steps exchange and all second moments are updated it is Adam, up to rounding."""
    rank, size = rank_and_size()
    model, reference = seeded(rank, make_mlp), seeded(0, make_mlp)
    optimizer = ZeroOneAdamOptimizer(model.parameters(), lr=0.05, betas=BETAS, variance_floor=0.0)
    adam = torch.optim.Adam(reference.parameters(), lr=0.05, betas=BETAS, foreach=False)
    model.with_bagua([optimizer], ZeroOneAdamAlgorithm(optimizer))
    for step in range(8):
        train_step(model, optimizer, step)
        means = mean_of([local_gradients(reference, batch(r, step, *SHAPE)) for r in range(size)])
        for name, parameter in reference.named_parameters():
            parameter.grad = means[name]
        adam.step()
        assert_weights(model, [p.detach() for p in reference.parameters()], tolerance=1e-4)
    assert expected(make_mlp).keys() == dict(model.named_parameters()).keys()


@case(2, 3)
def zero_one_adam_steps_alone_and_comes_together() -> None:
    rank, _ = rank_and_size()
    model = seeded(rank, make_mlp)
    optimizer = ZeroOneAdamOptimizer(
        model.parameters(), lr=0.02, variance_updates=4, variance_freeze_step=8, doubling_steps=4, max_local_steps=4
    )
    model.with_bagua([optimizer], ZeroOneAdamAlgorithm(optimizer, hierarchical=False))
    first = float(square_loss(model, batch(rank, 0, *SHAPE)).detach())
    updates = [step for step in range(1, 33) if optimizer.updates_variance(step)]
    assert updates == [1, 2, 3, 4, 5, 7], updates
    exchanges = [step for step in range(9, 33) if optimizer.exchanges(step)]
    assert exchanges == [9, 10, 11, 12, 14, 16, 20, 24, 28, 32], exchanges
    for step in range(32):
        train_step(model, optimizer, step % 4)
        if optimizer.exchanges(step + 1):
            assert_same_on_all_ranks(list(model.parameters()))
    assert float(square_loss(model, batch(rank, 0, *SHAPE)).detach()) < 0.6 * first
    assert model.bagua_ddp.statistics()["rounds"] == len(updates) + (8 - len(updates)) + len(exchanges)


@case(2)
def arguments_are_checked() -> None:
    parameters = list(make_mlp().parameters())
    for wrong in ({"lr": -1.0}, {"eps": -1.0}, {"betas": (1.0, 0.9)}, {"warmup_steps": 0}, {"variance_floor": 2}):
        with raises(ValueError, next(iter(wrong))):
            QAdamOptimizer(parameters, **wrong)
    with raises(ValueError, "q_adam_optimizer: ", "which pelton.torch_api.algorithms.q_adam has"):
        QAdamAlgorithm(torch.optim.SGD(parameters, lr=0.1))  # type: ignore[arg-type]
