"""Gradient allreduce equals one process, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cases.checks import (
    assert_same,
    assert_same_on_all_ranks,
    batch,
    gradients,
    local_gradients,
    mean_of,
    rank_and_size,
    seeded,
    square_loss,
    wrap,
)
from cases.registry import case

STEPS = 4
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class _Transformer(nn.Module):
    """Embedding by a linear layer, two encoder layers, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(6, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.inward(inputs)))


def _mlp() -> Any:
    return nn.Sequential(nn.Linear(12, 33), nn.Tanh(), nn.Linear(33, 17), nn.ReLU(), nn.Linear(17, 5))


def _conv_net() -> Any:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 10))


def _sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def _adam(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def _train(make: Callable[[], Any], shape: tuple[int, ...], make_optimizer: MakeOptimizer) -> None:
    """A few steps, each compared with one process that has every rank's batch."""
    rank, size = rank_and_size()
    reference = seeded(0, make)
    reference_optimizer = make_optimizer(reference)
    model = seeded(rank, make)  # different on purpose: rank 0's is what counts
    optimizer = make_optimizer(model)
    model = wrap(model, [optimizer])
    for step in range(STEPS):
        expected = mean_of([local_gradients(reference, batch(r, step, *shape)) for r in range(size)])
        optimizer.zero_grad()
        square_loss(model, batch(rank, step, *shape)).backward()
        assert_same(gradients(model), expected)
        for name, parameter in reference.named_parameters():
            parameter.grad = expected[name]
        optimizer.step()
        reference_optimizer.step()
    assert_same(dict(model.named_parameters()), dict(reference.named_parameters()))
    assert_same_on_all_ranks(list(model.parameters()))


@case(1, 2, 3, 4)
def mlp_equals_one_process() -> None:
    _train(_mlp, (8, 12), _sgd)


@case(1, 2, 3, 4)
def conv_net_equals_one_process() -> None:
    _train(_conv_net, (4, 1, 8, 8), _sgd)


@case(1, 2, 3, 4)
def transformer_equals_one_process() -> None:
    _train(_Transformer, (3, 5, 6), _adam)


@case(2, 3)
def many_buckets_equal_one_process() -> None:
    import os

    os.environ["BAGUA_DEFAULT_BUCKET_SIZE"] = "512"
    try:
        _train(_mlp, (8, 12), _sgd)
        model = wrap(seeded(0, _mlp))
        assert len(model.bagua_buckets) > 2, model.bagua_buckets
    finally:
        del os.environ["BAGUA_DEFAULT_BUCKET_SIZE"]


@case(2)
def a_large_model_equals_one_process() -> None:
    """Several buckets of the default size."""
    _train(lambda: nn.Sequential(nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 1500)), (4, 1500), _sgd)


@case(3)
def the_sum_is_taken_when_average_is_off() -> None:
    rank, size = rank_and_size()
    model = wrap(seeded(0, _mlp), average=False)
    reference = seeded(0, _mlp)
    square_loss(model, batch(rank, 0, 8, 12)).backward()
    per_rank = [local_gradients(reference, batch(r, 0, 8, 12)) for r in range(size)]
    assert_same(gradients(model), mean_of(per_rank, average=False))


def _one_step(make: Callable[[], Any], dtype: torch.dtype) -> None:
    rank, size = rank_and_size()
    model, reference = wrap(seeded(rank, make)), seeded(0, make)
    square_loss(model, batch(rank, 0, 8, 12, dtype=dtype)).backward()
    assert_same(
        gradients(model),
        mean_of([local_gradients(reference, batch(r, 0, 8, 12, dtype=dtype)) for r in range(size)]),
    )


@case(3)
def bfloat16_models() -> None:
    _one_step(lambda: _mlp().bfloat16(), torch.bfloat16)


@case(3)
def float64_models() -> None:
    _one_step(lambda: _mlp().double(), torch.float64)


@case(3)
def models_of_mixed_dtypes() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow = nn.Linear(12, 9).bfloat16()
            self.plain = nn.Linear(9, 7)
            self.wide = nn.Linear(7, 3).double()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.wide(self.plain(self.narrow(inputs.bfloat16()).float()).double())

    _one_step(Mixed, torch.float32)


@case(2)
def channels_last_models() -> None:
    rank, size = rank_and_size()

    def make() -> Any:
        return _conv_net().to(memory_format=torch.channels_last)

    model, reference = wrap(seeded(rank, make)), seeded(0, make)
    square_loss(model, batch(rank, 0, 4, 1, 8, 8)).backward()
    per_rank = [local_gradients(reference, batch(r, 0, 4, 1, 8, 8)) for r in range(size)]
    assert_same(gradients(model), mean_of(per_rank))


@case(2)
def gradients_born_in_shared_memory() -> None:
    import pelton

    pelton.set_gradient_allocator(True)
    try:
        _train(lambda: nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 300)), (4, 300), _sgd)
    finally:
        pelton.set_gradient_allocator(None)
