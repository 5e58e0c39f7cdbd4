"""All ranks of a job simulated in one process with plain torch: what algorithms are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from cases.checks import SHAPE, batch, make_mlp, mean, rank_and_size, seeded, square_loss

Make = Callable[[], Any]
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


class Quadratic(nn.Module):
    """With the square loss: mean (x - b)^2, b a number of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.linspace(-1, 1, 7))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.point - inputs[0, :1]


def sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


class World:
    """Every rank's model and optimizer. Threads: the test's. Owns: them."""

    def __init__(self, make: Make = make_mlp, make_optimizer: MakeOptimizer = sgd) -> None:
        self.rank, self.size = rank_and_size()
        self.models = [seeded(0, make) for _ in range(self.size)]
        self.optimizers = [make_optimizer(model) for model in self.models]

    def parameters(self, rank: int) -> list[torch.Tensor]:
        return list(self.models[rank].parameters())

    def backward(self, step: int) -> None:
        """Every rank's gradients of its own batch."""
        for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers)):
            optimizer.zero_grad()
            run(model, rank, step)

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def weights(self) -> list[list[torch.Tensor]]:
        """A copy, by rank and parameter."""
        return [[p.detach().clone() for p in self.parameters(rank)] for rank in range(self.size)]

    def means(self) -> list[torch.Tensor]:
        """The mean over the ranks of each parameter, as SUM-1 defines it."""
        weights = self.weights()
        return [exact_mean([row[i] for row in weights]) for i in range(len(weights[0]))]

    def set_weights(self, weights: Sequence[Sequence[torch.Tensor]]) -> None:
        with torch.no_grad():
            for rank, row in enumerate(weights):
                for parameter, value in zip(self.parameters(rank), row):
                    parameter.copy_(value)

    def mine(self) -> list[torch.Tensor]:
        return [p.detach() for p in self.parameters(self.rank)]


def exact_mean(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """As SUM-1 defines it."""
    found = mean(tensors)
    assert found is not None
    return found


def run(model: Any, rank: int, step: int) -> None:
    """Forward and backward on a rank's batch, in the model's dtype."""
    dtype = next(model.parameters()).dtype
    square_loss(model, batch(rank, step, *SHAPE, dtype=dtype)).backward()


def train_step(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """One step of this rank's."""
    optimizer.zero_grad()
    run(model, rank_and_size()[0], step)
    optimizer.step()


def assert_weights(model: Any, expected: Sequence[torch.Tensor], tolerance: float = 0.0) -> None:
    """Bitwise, or to within a tolerance."""
    for (name, parameter), wanted in zip(model.named_parameters(), expected, strict=True):
        error = float((parameter.detach().double() - wanted.double()).abs().max())
        if tolerance == 0.0:
            assert torch.equal(parameter.detach(), wanted), f"{name}: differs by {error}"
        assert error <= tolerance, f"{name}: differs by {error}, more than {tolerance}"
