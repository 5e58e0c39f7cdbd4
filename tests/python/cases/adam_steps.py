"""1-bit Adam and 0/1 Adam, step by step, against their papers' formulas in float64, written down a second time here.

On one host nothing is encoded, so that the formulas alone are compared; what codecs and error feedback do to a message
is held by algorithms/compressed_allreduce_test.cc.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from pelton.torch_api.algorithms.one_bit_adam import OneBitAdamAlgorithm, OneBitAdamOptimizer
from pelton.torch_api.algorithms.zero_one_adam import ZeroOneAdamAlgorithm, ZeroOneAdamOptimizer

from cases.checks import SHAPE, batch, local_gradients, make_mlp, rank_and_size, seeded
from cases.registry import case
from cases.worlds import train_step

LR, EPS, DECAY = 0.02, 1e-6, 0.05
BETA1, BETA2 = 0.8, 0.97
FLOOR = 0.05

Tensors = list[torch.Tensor]


def _make() -> Any:
    return make_mlp().double()


def _inputs(rank: int, step: int) -> torch.Tensor:
    return batch(rank, step, *SHAPE, dtype=torch.float64)


def _gradients(model: Any, weights: Tensors, rank: int, step: int) -> Tensors:
    """Of a rank's batch, at these weights."""
    plain = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, value in zip(plain.parameters(), weights):
            parameter.copy_(value)
    return list(local_gradients(plain, _inputs(rank, step)).values())


def _mean(rows: list[Tensors]) -> Tensors:
    return [torch.stack(column).mean(0) for column in zip(*rows)]


def _raised(second: torch.Tensor) -> torch.Tensor:
    """As `variance_floor` says: what is 0 stays so."""
    floor = FLOOR * second.mean()
    return torch.where(second > 0, second.clamp(min=float(floor)), second)


def _quotient(numerator: torch.Tensor, second: torch.Tensor, updates: int) -> torch.Tensor:
    denominator = (second / (1 - BETA2**updates)).sqrt() + EPS
    return torch.where(second > 0, numerator / denominator, torch.zeros_like(numerator))


def _assert_close(found: Any, wanted: Tensors, step: int) -> None:
    for i, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert torch.allclose(mine, theirs, rtol=1e-6, atol=1e-8), (step, i, float((mine - theirs).abs().max()))


@case(1, 2, 3)
def one_bit_adam_takes_its_formulas_steps() -> None:
    """arXiv 2102.02888, algorithm 1: three steps of warm-up, six after it."""
    warm_up = 3
    rank, size = rank_and_size()
    model = seeded(rank, _make)
    optimizer = OneBitAdamOptimizer(model.parameters(), LR, warm_up, (BETA1, BETA2), EPS, DECAY, FLOOR)
    model.with_bagua([optimizer], OneBitAdamAlgorithm(optimizer))
    plain = seeded(0, _make)
    x = [p.detach().clone() for p in plain.parameters()]
    first, second = ([torch.zeros_like(value) for value in x] for _ in range(2))
    for step in range(1, 10):
        everyones = [_gradients(plain, x, r, step - 1) for r in range(size)]
        if step <= warm_up:
            mean = _mean(everyones)
            first = [BETA1 * m + (1 - BETA1) * g for m, g in zip(first, mean)]
            second = [BETA2 * v + (1 - BETA2) * g * g for v, g in zip(second, mean)]
        else:
            second = [_raised(v) for v in second] if step == warm_up + 1 else second
            first = _mean([[BETA1 * m + (1 - BETA1) * g for m, g in zip(first, row)] for row in everyones])
        for i, value in enumerate(x):
            move = _quotient(first[i] / (1 - BETA1**step), second[i], min(step, warm_up))
            x[i] = value - LR * (DECAY * value + move)
        train_step(model, optimizer, step - 1)
        _assert_close(model.parameters(), x, step)
        _assert_close([optimizer.state[p]["exp_avg"] for p in model.parameters()], first, step)
        _assert_close([optimizer.state[p]["exp_avg_sq"] for p in model.parameters()], second, step)


class _ZeroOneWorld:
    """arXiv 2202.06009, algorithm 1, on every rank. Threads: the test's. Owns: all ranks' tensors."""

    def __init__(self, size: int) -> None:
        self.model = seeded(0, _make)
        begin = [p.detach().clone() for p in self.model.parameters()]
        self.x = [list(begin) for _ in range(size)]
        self.first, self.sums = ([[torch.zeros_like(v) for v in begin] for _ in range(size)] for _ in range(2))
        self.second = [torch.zeros_like(v) for v in begin]
        self.anchor, self.total, self.decay, self.updates = begin, 0.0, 1.0, 0

    def step(self, step: int, updates_variance: bool, exchanges: bool) -> None:
        """Step number `step`, from 1."""
        gradients = [_gradients(self.model, x, r, step - 1) for r, x in enumerate(self.x)]
        if updates_variance:
            mean = _mean(gradients)
            gradients = [mean] * len(gradients)
            self.updates += 1
            self.second = [_raised(BETA2 * v + (1 - BETA2) * g * g) for v, g in zip(self.second, mean)]
        rate = LR / (1 - BETA1**step)
        self.total += rate
        self.decay *= 1 - LR * DECAY
        for r, row in enumerate(gradients):
            self.first[r] = [BETA1 * m + (1 - BETA1) * g for m, g in zip(self.first[r], row)]
            self.sums[r] = [u + rate * m for u, m in zip(self.sums[r], self.first[r])]
            moves = [_quotient(rate * m, v, self.updates) for m, v in zip(self.first[r], self.second)]
            self.x[r] = [x * (1 - LR * DECAY) - move for x, move in zip(self.x[r], moves)]
        if exchanges:
            self._exchange()

    def _exchange(self) -> None:
        common = _mean(self.sums)
        moves = [_quotient(u, v, self.updates) for u, v in zip(common, self.second)]
        self.anchor = [y * self.decay - move for y, move in zip(self.anchor, moves)]
        for r in range(len(self.x)):
            self.x[r] = list(self.anchor)
            self.first[r] = [u / self.total for u in common]
            self.sums[r] = [torch.zeros_like(u) for u in common]
        self.total, self.decay = 0.0, 1.0


@case(1, 2, 3)
def zero_one_adam_takes_its_formulas_steps() -> None:
    """In all four kinds of steps: with and without new variances, with and without an exchange."""
    updating, exchanging = {1, 2, 3, 5, 7}, {*range(1, 11), 12, 16, 20}
    rank, size = rank_and_size()
    model = seeded(rank, _make)
    optimizer = ZeroOneAdamOptimizer(model.parameters(), LR, (BETA1, BETA2), EPS, DECAY, 2, 8, 3, 4, FLOOR)
    model.with_bagua([optimizer], ZeroOneAdamAlgorithm(optimizer))
    world = _ZeroOneWorld(size)
    for step in range(1, 23):
        assert optimizer.updates_variance(step) == (step in updating), step
        assert optimizer.exchanges(step) == (step in exchanging), step
        world.step(step, step in updating, step in exchanging)
        train_step(model, optimizer, step - 1)
        _assert_close(model.parameters(), world.x[rank], step)
        _assert_close([optimizer.state[p]["exp_avg"] for p in model.parameters()], world.first[rank], step)
        _assert_close([optimizer.state[p]["exp_avg_sq"] for p in model.parameters()], world.second, step)
    assert math.isclose(optimizer.state[next(iter(model.parameters()))]["total"], world.total)
