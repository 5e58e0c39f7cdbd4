"""Where BlueFog's optimizers come to rest on a strongly convex problem, against a linear system that says where.

Each rank has a quadratic loss of its own, |A w - b|^2 / 2, and a constant rate. The mean of gradients comes to rest at
the optimum of the sum. What averages weights does not, by theory: it rests where averaging and the ranks' own gradients
keep the balance, and that is the solution of one linear system of all ranks' weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pelton.bluefog.torch as bf
import torch
from pelton.bluefog.torch.optimizers import (
    CommunicationType,
    DistributedPullGetOptimizer,
    DistributedPushSumOptimizer,
)
from torch import nn

from cases.registry import case

SIZE = 3  # of the weights
RATE = 0.3
STEPS = 70
NEAR = 1e-6

Make = Callable[[torch.optim.Optimizer, nn.Module], Any]


def _problem(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A and b; A's square is well conditioned."""
    generator = torch.Generator().manual_seed(77 + rank)
    noise = torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)
    return torch.eye(SIZE, dtype=torch.float64) + 0.1 * noise, torch.randn(
        SIZE, generator=generator, dtype=torch.float64
    )


class _System:
    """The losses of all ranks: gradients are H W - G of the weights W, one rank's behind the other's.

    Threads: one. Owns: its matrices.
    """

    def __init__(self, size: int) -> None:
        problems = [_problem(rank) for rank in range(size)]
        self.size = size
        self.one = torch.eye(size * SIZE, dtype=torch.float64)
        self.h = torch.block_diag(*(a.T @ a for a, _ in problems))
        self.g = torch.cat([a.T @ b for a, b in problems])

    def spread(self, mixing: torch.Tensor) -> torch.Tensor:
        """What a matrix over ranks does to their weights."""
        return torch.kron(mixing, torch.eye(SIZE, dtype=torch.float64))

    def optimum(self) -> torch.Tensor:
        """Of the sum, on every rank."""
        h = sum(self.h[i : i + SIZE, i : i + SIZE] for i in range(0, self.size * SIZE, SIZE))
        assert isinstance(h, torch.Tensor)
        return torch.linalg.solve(h, self.g.view(self.size, SIZE).sum(0)).repeat(self.size, 1)

    def rest(self, matrix: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The weights at which the one is equal to the other, by rank."""
        return torch.linalg.solve(matrix, target).view(self.size, SIZE)

    def beside(self, mixing: torch.Tensor) -> torch.Tensor:
        """W = M W - rate (H W - G)."""
        return self.rest(self.one - self.spread(mixing) + RATE * self.h, RATE * self.g)

    def after(self, mixing: torch.Tensor) -> torch.Tensor:
        """W = M (W - rate (H W - G))."""
        m = self.spread(mixing)
        return self.rest(self.one - m @ (self.one - RATE * self.h), RATE * m @ self.g)

    def of_push_sum(self, shares: torch.Tensor) -> torch.Tensor:
        """X = P (X - rate (H Z - G)) with Z = X / w, and w = P w, whose sum is the number of ranks; Z."""
        values, vectors = torch.linalg.eig(shares)
        w = vectors[:, (values - 1).abs().argmin()].real
        w = w / w.sum() * self.size
        p, divides = self.spread(shares), self.spread(torch.diag(1 / w))
        x = self.rest(self.one - p @ (self.one - RATE * self.h @ divides), RATE * p @ self.g)
        return x / w[:, None]


def _uniform_rows() -> torch.Tensor:
    """What a rank takes: equal parts of its own and its sources' weights."""
    graph, size = bf.load_topology(), bf.size()
    takes = [[float(r == s or graph.has_edge(s, r)) for s in range(size)] for r in range(size)]
    matrix = torch.tensor(takes, dtype=torch.float64)
    return matrix / matrix.sum(1, keepdim=True)


def _uniform_columns() -> torch.Tensor:
    """What a rank gives: equal parts to itself and to its destinations."""
    graph, size = bf.load_topology(), bf.size()
    gives = [[float(r == s or graph.has_edge(s, r)) for s in range(size)] for r in range(size)]
    matrix = torch.tensor(gives, dtype=torch.float64)
    return matrix / matrix.sum(0, keepdim=True)


def _trained(make: Make, *, is_in_step: bool = False) -> torch.Tensor:
    """This rank's weights after many steps; with `is_in_step` no rank begins one before all have ended the last."""
    a, b = _problem(bf.rank())
    net = nn.Linear(SIZE, 1, bias=False).double()
    nn.init.zeros_(net.weight)  # means of gradients keep the differences that there are at the beginning
    optimizer = make(torch.optim.SGD(net.parameters(), lr=RATE), net)
    if hasattr(optimizer, "force_barrier"):
        optimizer.force_barrier = True  # so that none is far ahead of what the others have put
    for _ in range(STEPS):
        optimizer.zero_grad()
        ((net(a).flatten() - b).square().sum() / 2).backward()
        optimizer.step()
        if is_in_step:
            bf.barrier()
    bf.barrier()
    if hasattr(optimizer, "unregister_window"):
        optimizer.unregister_window()
    return net.weight.detach().flatten()


def _assert_rests(make: Make, where: torch.Tensor, optimum: torch.Tensor, *, is_in_step: bool = False) -> None:
    """At its fixed point, which is not the optimum."""
    found, size = _trained(make, is_in_step=is_in_step), bf.size()
    assert torch.allclose(found, where[bf.rank()], rtol=0, atol=NEAR), (found, where[bf.rank()])
    assert size == 1 or (where - optimum).abs().max() > 1000 * NEAR, "this fixed point would show nothing"


@case(3, 4)
def gradients_means_reach_the_optimum() -> None:
    bf.init(bf.StarGraph)
    found = _trained(bf.DistributedGradientAllreduceOptimizer)
    assert torch.allclose(found, _System(bf.size()).optimum()[bf.rank()], rtol=0, atol=NEAR), found


@case(3, 4)
def averages_of_weights_rest_at_their_fixed_points() -> None:
    """On a star, where ranks have unequally many neighbors; on every kind of communication."""
    bf.init(bf.StarGraph)
    system, rows = _System(bf.size()), _uniform_rows()
    mean = torch.full_like(rows, 1 / bf.size())
    optimum = system.optimum()
    _assert_rests(bf.DistributedAdaptWithCombineOptimizer, system.beside(rows), optimum)
    _assert_rests(bf.DistributedAdaptThenCombineOptimizer, system.after(rows), optimum)
    everybody = CommunicationType.allreduce
    make = lambda o, net: bf.DistributedAdaptWithCombineOptimizer(o, net, everybody)  # noqa: E731
    _assert_rests(make, system.beside(mean), optimum)


@case(3, 4)
def windows_rest_where_the_averages_do() -> None:
    """A put is a whole step's weights, so that at rest it does not matter which step's. A get may find weights that
    were averaged and not stepped yet, and a rank that is ahead may give a share more: those have to be in step.
    """
    bf.init(bf.StarGraph)
    system = _System(bf.size())
    where, optimum = system.beside(_uniform_rows()), system.optimum()
    _assert_rests(bf.DistributedWinPutOptimizer, where, optimum)
    _assert_rests(DistributedPullGetOptimizer, where, optimum, is_in_step=True)
    shares = system.of_push_sum(_uniform_columns())
    _assert_rests(DistributedPushSumOptimizer, shares, optimum, is_in_step=True)
