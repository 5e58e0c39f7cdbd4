"""Algorithms that average weights equal all ranks simulated in one process."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from pelton.torch_api import communication
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.algorithms.decentralized import DecentralizedAlgorithm
from torch import nn
from torch.utils.checkpoint import checkpoint

from cases.checks import SHAPE, batch, make_mlp, raises, rank_and_size, seeded, square_loss
from cases.registry import case
from cases.worlds import Make, MakeOptimizer, Quadratic, World, adam, assert_weights, exact_mean, run, sgd, train_step

STEPS = 5


def _wrapped(algorithm: Algorithm, make: Make = make_mlp, make_optimizer: MakeOptimizer = sgd) -> tuple[Any, Any]:
    rank, _ = rank_and_size()
    model = seeded(rank, make)
    optimizer = make_optimizer(model)
    return model.with_bagua([optimizer], algorithm), optimizer


def _check_all(make: Make, make_optimizer: MakeOptimizer, interval: int = 1) -> None:
    """x becomes the mean of all ranks' x, to which the gradients at the old x are applied."""
    model, optimizer = _wrapped(
        DecentralizedAlgorithm(hierarchical=False, communication_interval=interval), make, make_optimizer
    )
    world = World(make, make_optimizer)
    for step in range(STEPS):
        train_step(model, optimizer, step)
        world.backward(step)
        if step % interval == 0:
            world.set_weights([world.means()] * world.size)
        world.step()
        assert_weights(model, world.mine())


@case(1, 2, 3, 4)
def decentralized_all_equals_the_simulated_world() -> None:
    _check_all(make_mlp, sgd)


@case(2)
def decentralized_all_on_a_quadratic_with_adam() -> None:
    _check_all(Quadratic, adam)


@case(3)
def decentralized_rounds_are_an_interval_apart() -> None:
    _check_all(make_mlp, sgd, interval=3)


@case(2)
def decentralized_in_bfloat16() -> None:
    _check_all(lambda: make_mlp().bfloat16(), sgd)


@case(3)
def decentralized_in_float64() -> None:
    _check_all(lambda: make_mlp().double(), sgd)


def _peer(rank: int, size: int, round_: int) -> int:
    """Bagua's rule for an even number of ranks."""
    half = size // 2
    if rank < half:
        return (round_ + rank) % half + half
    return (rank - half - round_) % half


@case(2, 4)
def decentralized_shift_one_equals_the_simulated_world() -> None:
    model, optimizer = _wrapped(DecentralizedAlgorithm(hierarchical=False, peer_selection_mode="shift_one"))
    world = World()
    for step in range(STEPS):
        train_step(model, optimizer, step)
        world.backward(step)
        old = world.weights()
        mixed = []
        for rank in range(world.size):
            pair = sorted((rank, _peer(rank, world.size, step)))
            mixed.append([exact_mean([old[pair[0]][i], old[pair[1]][i]]) for i in range(len(old[0]))])
        world.set_weights(mixed)
        world.step()
        assert_weights(model, world.mine())


def _everyones(model: Any) -> list[torch.Tensor]:
    """All weights of each rank, by rank."""
    own = torch.cat([p.detach().flatten() for p in model.parameters()])
    _, size = rank_and_size()
    found = torch.empty(size * own.numel())
    communication.allgather(own, found)
    return list(found.chunk(size))


def _check_pairs(mode: str) -> None:
    """Steps of no length: what changes is the averaging. Each rank meets at most one other, whose choice it is too."""
    rank, size = rank_and_size()
    model = seeded(rank, make_mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.with_bagua([optimizer], DecentralizedAlgorithm(hierarchical=False, peer_selection_mode=mode))
    pairs = set()
    for step in range(12):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(4.0**rank)  # no two pairs have one mean
        before = _everyones(model)
        train_step(model, optimizer, step)
        after = _everyones(model)
        met = [next(b for b in range(size) if torch.equal(after[a], (before[a] + before[b]) / 2)) for a in range(size)]
        # Who meets itself sits out: the ends of a row of neighbours, or who is late.
        assert all(met[met[a]] == a for a in range(size)), (step, met)
        assert mode != "random_matching" or all(met[a] != a for a in range(size)), (step, met)
        pairs.add(tuple(met))
    assert len(pairs - {tuple(range(size))}) > (0 if size == 2 else 1), pairs


@case(2, 4)
def random_matching_averages_pairs() -> None:
    _check_pairs("random_matching")


@case(2, 4)
def latency_aware_matching_averages_pairs() -> None:
    _check_pairs("latency_aware")


@case(2, 4)
def matching_that_avoids_stragglers_averages_pairs() -> None:
    _check_pairs("avoid_stragglers")


@case(4)
def nobody_waits_for_a_straggler() -> None:
    """Ranks 0 to 2 take steps until rank 3 has slept through its own: with equally many steps none would end. Steps
    change nothing but by averaging, and a round's mean tells with whom.
    """
    rank, size = rank_and_size()
    model = seeded(rank, make_mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.with_bagua([optimizer], DecentralizedAlgorithm(hierarchical=False, peer_selection_mode="avoid_stragglers"))
    mean_of = {(4.0**rank + 4.0**peer) / 2: peer for peer in range(size)}
    met = torch.zeros(size)
    done = Path(sys.argv[1]) / "slept"  # the folder of the job
    while not done.exists():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(4.0**rank)
        train_step(model, optimizer, 0)
        values = {float(value) for parameter in model.parameters() for value in parameter.flatten()}
        assert len(values) == 1, values
        met[mean_of[values.pop()]] += 1
        if rank == size - 1:
            time.sleep(0.15)
            if met.sum() == 12:
                done.touch()
    everyones = torch.empty(size * size)
    communication.allgather(met, everyones)
    table = everyones.view(size, size)
    assert torch.equal(table, table.t()), table  # both ends of each exchange counted it
    assert table[-1, :-1].sum() >= 6, table  # the slow one is not left out
    assert table[:-1].sum(1).min() > 12, table
    model.bagua_ddp.consolidate()
    weights = _everyones(model)
    assert all(torch.equal(weights[0], other) for other in weights), weights


@case(2)
def no_sync_begins_no_round_and_is_no_step() -> None:
    """Two local micro-batches, then one that counts: a round a step, and the gradient is the sum."""
    model, optimizer = _wrapped(DecentralizedAlgorithm(hierarchical=False, communication_interval=2))
    world = World()
    for step in range(4):
        optimizer.zero_grad()
        with model.no_sync():
            run(model, world.rank, 10 * step)
            run(model, world.rank, 10 * step + 1)
        run(model, world.rank, 10 * step + 2)
        optimizer.step()
        world.backward(10 * step)
        for rank in range(world.size):
            for micro in (1, 2):
                run(world.models[rank], rank, 10 * step + micro)
        if step % 2 == 0:
            world.set_weights([world.means()] * world.size)
        world.step()
        assert_weights(model, world.mine())
    assert model.bagua_ddp.statistics()["rounds"] == 2


@case(2)
def two_forward_passes_before_one_backward_share_a_round() -> None:
    model, optimizer = _wrapped(DecentralizedAlgorithm(hierarchical=False))
    world = World()

    def loss(net: Any, rank: int, step: int) -> torch.Tensor:
        one, two = batch(rank, step, *SHAPE), batch(rank, step + 100, *SHAPE)
        return square_loss(net, one) + square_loss(net, two)

    for step in range(3):
        optimizer.zero_grad()
        loss(model, world.rank, step).backward()
        optimizer.step()
        for rank, (net, other) in enumerate(zip(world.models, world.optimizers)):
            other.zero_grad()
            loss(net, rank, step).backward()
        world.set_weights([world.means()] * world.size)
        world.step()
        assert_weights(model, world.mine())
    assert model.bagua_ddp.statistics()["rounds"] == 3


@case(2)
def a_change_that_a_round_would_undo_is_refused_until_it_is_gone() -> None:
    """Made by hand after a backward pass that another one could follow."""
    rank, _ = rank_and_size()
    model, optimizer = _wrapped(DecentralizedAlgorithm(hierarchical=False))
    train_step(model, optimizer, 0)
    square_loss(model, batch(rank, 1, *SHAPE)).backward(retain_graph=True)
    first = next(model.parameters())
    before = first.detach().clone()
    first.data.add_(100.0)
    for _ in range(2):
        with raises(RuntimeError, "changed by something that is no torch.optim.Optimizer"):
            model(batch(rank, 2, *SHAPE))
        assert torch.equal(first, before + 100.0)
    first.data.copy_(before)


@case(2)
def a_closure_of_the_optimizer_is_an_iteration() -> None:
    model, optimizer = _wrapped(DecentralizedAlgorithm(hierarchical=False))
    world = World()

    for step in range(3):

        def closure(step: int = step) -> None:
            optimizer.zero_grad()
            run(model, world.rank, step)

        optimizer.step(closure)
        world.backward(step)
        world.set_weights([world.means()] * world.size)
        world.step()
        assert_weights(model, world.mine())


@case(2)
def a_step_that_a_rank_skips_leaves_the_ranks_in_step() -> None:
    """As a gradient scaler does on one rank: the next forward pass ends the round."""
    model, optimizer = _wrapped(DecentralizedAlgorithm(hierarchical=False))
    world = World()
    for step in range(4):
        optimizer.zero_grad()
        run(model, world.rank, step)
        skips = step == 1 and world.rank == 0
        if not skips:
            optimizer.step()
        world.backward(step)
        world.set_weights([world.means()] * world.size)
        for rank, other in enumerate(world.optimizers):
            if step != 1 or rank != 0:
                other.step()
        if not skips:
            assert_weights(model, world.mine())
    assert model.bagua_ddp.statistics()["rounds"] == 4


class _Checkpointed(nn.Module):
    """Runs the whole of its inner model again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_mlp()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, inputs, use_reentrant=True)


@case(2)
def evaluation_and_checkpointing_begin_no_round() -> None:
    model, optimizer = _wrapped(DecentralizedAlgorithm(hierarchical=False), _Checkpointed)
    world = World(_Checkpointed)
    for step in range(3):
        if world.rank == 0:
            model.eval()
            model(batch(0, 0, *SHAPE))
            model.train()
        optimizer.zero_grad()
        inputs = batch(world.rank, step, *SHAPE).requires_grad_()
        square_loss(model, inputs).backward()
        optimizer.step()
        for rank, (net, other) in enumerate(zip(world.models, world.optimizers)):
            other.zero_grad()
            square_loss(net, batch(rank, step, *SHAPE).requires_grad_()).backward()
        world.set_weights([world.means()] * world.size)
        world.step()
        assert_weights(model, world.mine())


@case(2)
def a_cast_brings_all_ranks_to_their_mean() -> None:
    """Nobody's training is thrown away."""
    model, optimizer = _wrapped(DecentralizedAlgorithm(hierarchical=False, communication_interval=100))
    for step in range(3):
        train_step(model, optimizer, step)
    before = [row.double() for row in _everyones(model)]
    assert not torch.equal(before[0], before[1])
    model.double()
    optimizer.state.clear()
    model(batch(0, 0, *SHAPE, dtype=torch.float64))
    now = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert torch.equal(now, exact_mean(before))


@case(2)
def options_are_checked() -> None:
    with raises(ValueError, "sideways", "peer_selection_mode"):
        _wrapped(DecentralizedAlgorithm(peer_selection_mode="sideways"))
    with raises(ValueError, "communication_interval"):
        _wrapped(DecentralizedAlgorithm(communication_interval=0))
