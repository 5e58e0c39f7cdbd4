"""Algorithms that exchange weights after the optimizer's step equal all ranks simulated in one process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import networkx
import pelton
import pelton.torch_api as bagua
import torch
from pelton.errors import FailedPrecondition, InvalidArgument
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.algorithms.decentralized import LowPrecisionDecentralizedAlgorithm
from pelton.torch_api.algorithms.diloco import DiLoCoAlgorithm
from pelton.torch_api.algorithms.local_sgd import LocalSGDAlgorithm, PostLocalSGDAlgorithm
from torch import nn

from cases.checks import assert_same_on_all_ranks, make_mlp, mean_of, raises, rank_and_size, run_backward, seeded
from cases.registry import case
from cases.worlds import Make, Quadratic, World, assert_weights, run, sgd, train_step

STEPS = 6


def _wrapped(algorithm: Algorithm, make: Make = make_mlp) -> tuple[Any, Any]:
    rank, _ = rank_and_size()
    model = seeded(rank, make)
    optimizer = sgd(model)
    return model.with_bagua([optimizer], algorithm), optimizer


@contextlib.contextmanager
def _small_buckets() -> Iterator[None]:
    os.environ["BAGUA_DEFAULT_BUCKET_SIZE"] = "128"
    try:
        yield
    finally:
        del os.environ["BAGUA_DEFAULT_BUCKET_SIZE"]


def _check_local(make: Make, interval: int) -> None:
    model, optimizer = _wrapped(LocalSGDAlgorithm(interval=interval), make)
    world = World(make)
    for step in range(STEPS):
        train_step(model, optimizer, step)
        world.backward(step)
        world.step()
        if (step + 1) % interval == 0:
            world.set_weights([world.means()] * world.size)
        assert_weights(model, world.mine())


@case(1, 2, 3, 4)
def local_sgd_equals_the_simulated_world() -> None:
    _check_local(make_mlp, 3)


@case(2)
def local_sgd_on_a_quadratic_at_every_step() -> None:
    _check_local(Quadratic, 1)


@case(3)
def local_sgd_in_bfloat16() -> None:
    _check_local(lambda: make_mlp().bfloat16(), 2)


@case(2)
def local_sgd_in_float64() -> None:
    _check_local(lambda: make_mlp().double(), 2)


@case(3)
def post_local_sgd_begins_with_gradient_allreduce() -> None:
    model, optimizer = _wrapped(PostLocalSGDAlgorithm(warmup_steps=2, interval=2))
    world = World()
    for step in range(STEPS):
        train_step(model, optimizer, step)
        world.backward(step)
        if step < 2:
            names = [dict(net.named_parameters()) for net in world.models]
            means = mean_of([{name: p.grad for name, p in named.items()} for named in names])
            for named in names:
                for name, parameter in named.items():
                    parameter.grad = means[name].clone()
        world.step()
        if step in (3, 5):
            world.set_weights([world.means()] * world.size)
        assert_weights(model, world.mine())


@case(2)
def steps_inside_no_sync_do_not_count() -> None:
    model, optimizer = _wrapped(LocalSGDAlgorithm(interval=2))
    world = World()
    counted = 0
    for step in range(6):
        if step % 3 == 2:
            with model.no_sync():
                train_step(model, optimizer, step)
        else:
            train_step(model, optimizer, step)
        world.backward(step)
        world.step()
        counted += step % 3 != 2
        if step % 3 != 2 and counted % 2 == 0:
            world.set_weights([world.means()] * world.size)
        assert_weights(model, world.mine())


@case(2)
def a_weight_that_is_no_number_has_not_changed() -> None:
    """On one rank, whose loss has overflowed; it goes on accumulating gradients like the others."""
    model, optimizer = _wrapped(LocalSGDAlgorithm(interval=2))
    train_step(model, optimizer, 0)
    if rank_and_size()[0] == 0:
        next(model.parameters()).data[0, 0] = torch.nan
    for step in range(1, 4):
        run_backward(model, step)
    optimizer.step()
    assert model.bagua_ddp.statistics()["rounds"] == 1


class _TwoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.tail = nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.tail(torch.tanh(self.head(inputs)))


@case(2)
def a_step_is_one_of_all_optimizers() -> None:
    rank, _ = rank_and_size()
    model = seeded(rank, _TwoParts)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.head, model.tail)]
    model.with_bagua(optimizers, LocalSGDAlgorithm(interval=1))
    world = World(_TwoParts, lambda net: torch.optim.SGD(net.parameters(), lr=0.1))
    for step in range(3):
        model.zero_grad()
        run(model, rank, step)
        optimizers[0].step()
        assert model.bagua_ddp.statistics()["rounds"] == step
        optimizers[1].step()
        world.backward(step)
        world.step()
        world.set_weights([world.means()] * world.size)
        assert_weights(model, world.mine())
    # Only one steps: the round comes before the next forward pass in training mode.
    model.zero_grad()
    run(model, rank, 3)
    optimizers[0].step()
    model.eval()
    model(torch.zeros(1, 6))
    assert model.bagua_ddp.statistics()["rounds"] == 3
    model.train()
    model(torch.zeros(1, 6))
    assert model.bagua_ddp.statistics()["rounds"] == 4
    assert_same_on_all_ranks(list(model.head.parameters()))


@case(2)
def a_local_step_of_one_of_two_optimizers_does_not_count() -> None:
    """Inside `no_sync`, and on one rank alone: the rounds stay those of both optimizers' steps, on all ranks alike."""
    rank, _ = rank_and_size()
    model = seeded(rank, _TwoParts)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.head, model.tail)]
    model.with_bagua(optimizers, LocalSGDAlgorithm(interval=2))
    if rank == 0:
        with model.no_sync():
            run(model, rank, 0)
            optimizers[1].step()
    for step in range(1, 5):
        model.zero_grad()
        run(model, rank, step)
        optimizers[0].step()
        assert model.bagua_ddp.statistics()["rounds"] == (step - 1) // 2
        optimizers[1].step()
        assert model.bagua_ddp.statistics()["rounds"] == step // 2
    assert_same_on_all_ranks(list(model.parameters()))


@case(1, 2, 3, 4)
def slowmo_equals_the_simulated_world() -> None:
    model, optimizer = _wrapped(pelton.algorithm("slowmo", interval=2, slow_momentum=0.5))
    world = World()
    anchor = world.weights()[0]
    momentum = [torch.zeros_like(weight) for weight in anchor]
    for step in range(STEPS):
        train_step(model, optimizer, step)
        world.backward(step)
        world.step()
        if (step + 1) % 2 == 0:
            momentum = [0.5 * v + (a - mean) for v, a, mean in zip(momentum, anchor, world.means())]
            anchor = [a - v for a, v in zip(anchor, momentum)]
            world.set_weights([anchor] * world.size)
        assert_weights(model, world.mine(), tolerance=1e-5)


def _mean(tensor: torch.Tensor) -> torch.Tensor:
    mean = tensor.detach().clone()
    bagua.allreduce_inplace(mean)
    return mean / rank_and_size()[1]


@case(2, 4)
def choco_sgd_keeps_the_mean_of_what_ranks_learn() -> None:
    rank, _ = rank_and_size()
    model, optimizer = _wrapped(pelton.algorithm("choco_sgd", codec="block_int4"))
    start = [weight.detach().clone() for weight in model.parameters()]
    learnt = [torch.zeros_like(weight) for weight in start]
    for step in range(STEPS):
        optimizer.zero_grad()
        run(model, rank, step)
        for total, weight in zip(learnt, model.parameters()):
            total.sub_(0.05 * _mean(weight.grad))
        for group in optimizer.param_groups:
            group["lr"], group["momentum"] = 0.05, 0.0
        optimizer.step()
    for weight, begin, total in zip(model.parameters(), start, learnt):
        assert torch.allclose(_mean(weight), begin + total, atol=1e-4)
    assert model.bagua_ddp.statistics()["rounds"] == STEPS


@case(4)
def choco_sgd_refuses_graphs_that_are_not_symmetric_or_change() -> None:
    for graph, text in (("exponential", "not symmetric"), ("one_peer_exponential", "not the same in every step")):
        with raises(InvalidArgument, f"option graph is '{graph}', which on 4 ranks is", text):
            _wrapped(pelton.algorithm("choco_sgd", graph=graph))


def _ring_by_hand(size: int) -> networkx.DiGraph:
    """What the graph `ring` is on so many ranks."""
    graph = networkx.DiGraph()
    for rank in range(size):
        neighbors = {(rank - 1) % size, (rank + 1) % size, rank}
        graph.add_weighted_edges_from((rank, other, 1 / len(neighbors)) for other in neighbors)
    return graph


@case(2, 4)
def a_graph_by_hand_trains_as_the_same_graph_by_its_name() -> None:
    _, size = rank_and_size()
    weights = []
    for graph in ("ring", _ring_by_hand(size)):
        model, optimizer = _wrapped(pelton.algorithm("exact_diffusion", graph=graph))
        for step in range(STEPS):
            train_step(model, optimizer, step)
        weights.append([weight.detach().clone() for weight in model.parameters()])
    assert all(torch.equal(named, given) for named, given in zip(*weights))


@case(2, 4)
def a_graph_by_hand_that_differs_between_ranks_is_an_error_with_its_first_edge() -> None:
    rank, size = rank_and_size()
    graph = _ring_by_hand(size)
    if rank == 1:  # symmetric, and it keeps the mean
        for one, other in ((0, 1), (1, 0)):
            graph.edges[one, one]["weight"] += 0.125
            graph.edges[one, other]["weight"] -= 0.125
    first = f"0>0:{_ring_by_hand(size).edges[0, 0]['weight']!r}"
    with raises(FailedPrecondition, "differs between ranks", first, f"0>0:{graph.edges[0, 0]['weight']!r}"):
        _wrapped(pelton.algorithm("exact_diffusion", graph=graph))


@case(2)
def a_graph_by_hand_for_another_number_of_ranks_is_an_error_that_names_both() -> None:
    with raises(InvalidArgument, "given by hand for 4 ranks", "the group has 2"):
        _wrapped(pelton.algorithm("exact_diffusion", graph=_ring_by_hand(4)))
    with raises(InvalidArgument, "option base", "given by hand for 4 ranks", "the group has 2"):
        _wrapped(pelton.algorithm("slowmo", base=_ring_by_hand(4)))


@case(2)
def every_parameter_must_be_in_an_optimizer() -> None:
    for algorithm in (LocalSGDAlgorithm(), DiLoCoAlgorithm(), LowPrecisionDecentralizedAlgorithm()):
        model = make_mlp()
        with raises(ValueError, "no optimizer steps", "2.weight"):
            model.with_bagua([torch.optim.SGD(model[0].parameters(), lr=0.1)], algorithm)


def _min_max_uint8(values: torch.Tensor) -> torch.Tensor:
    """What a chunk is after encoding and decoding: Bagua's format, in float32."""
    low, high = values.min(), values.max()
    scale = torch.tensor(255.0) / (high - low + torch.tensor(1e-7))
    upper = torch.round(high * scale)
    lower = upper - 255.0
    byte = (torch.minimum(torch.round(values * scale), upper) - lower).clamp(0, 255)
    return (byte + lower) / scale


class _Ring:
    """Every rank's w, l and r of every bucket: flat, in the plan's order, padded as a plan's buckets are."""

    def __init__(self, world: World, buckets: list[list[str]]) -> None:
        self.world, self.buckets = world, buckets
        self.weight = [[self.flat(rank, names) for names in buckets] for rank in range(world.size)]
        self.left = [[flat.clone() for flat in row] for row in self.weight]
        self.right = [[flat.clone() for flat in row] for row in self.weight]

    def _named(self, rank: int) -> dict[str, torch.Tensor]:
        return dict(self.world.models[rank].named_parameters())

    def flat(self, rank: int, names: list[str]) -> torch.Tensor:
        flat = torch.cat([self._named(rank)[name].detach().reshape(-1) for name in names])
        count = -(-flat.numel() // 16) * 16
        count = -(-count // self.world.size) * self.world.size
        return torch.cat([flat, torch.zeros(count - flat.numel())])

    def round(self) -> None:
        size = self.world.size
        for b, names in enumerate(self.buckets):
            sent = []
            for rank in range(size):
                third = torch.tensor(1 / 3)
                total = self.flat(rank, names) + third * self.left[rank][b] + third * self.right[rank][b]
                sent.append(_min_max_uint8(total + torch.tensor(-(1 + 1 / 3 + 1 / 3)) * self.weight[rank][b]))
            for rank in range(size):
                self.weight[rank][b] = self.weight[rank][b] + sent[rank]
                self.left[rank][b] = self.left[rank][b] + sent[(rank - 1) % size]
                self.right[rank][b] = self.right[rank][b] + sent[(rank + 1) % size]
                self._store(rank, names, self.weight[rank][b])

    def _store(self, rank: int, names: list[str], flat: torch.Tensor) -> None:
        begin = 0
        with torch.no_grad():
            for name in names:
                parameter = self._named(rank)[name]
                parameter.copy_(flat[begin : begin + parameter.numel()].view_as(parameter))
                begin += parameter.numel()


def _check_ring(make: Make, interval: int = 1) -> None:
    model, optimizer = _wrapped(
        LowPrecisionDecentralizedAlgorithm(hierarchical=False, communication_interval=interval), make
    )
    world = World(make)
    ring = _Ring(world, [list(bucket.tensor_names) for bucket in model.bagua_buckets])
    for step in range(STEPS):
        train_step(model, optimizer, step)
        world.backward(step)
        world.step()
        if step % interval == 0 and world.size > 1:
            ring.round()
        assert_weights(model, world.mine())


@case(1, 2, 3, 4)
def the_ring_in_low_precision_equals_the_simulated_world() -> None:
    _check_ring(make_mlp)


@case(3)
def the_ring_of_several_buckets_with_an_interval() -> None:
    with _small_buckets():
        _check_ring(make_mlp, interval=2)


class _Outer:
    """DiLoCo's outer optimizer over one world."""

    def __init__(self, world: World, rate: float, momentum: float) -> None:
        self.world, self.rate, self.momentum = world, rate, momentum
        self.anchor = [p.clone() for p in world.mine()]
        self.velocity = [torch.zeros_like(p) for p in self.anchor]

    def step(self, taken: list[list[torch.Tensor]], which: list[int]) -> None:
        """One outer step from what the ranks held, for the parameters `which`."""
        for i in which:
            gradient = torch.stack([self.anchor[i] - row[i] for row in taken]).mean(0)
            self.velocity[i] = self.momentum * self.velocity[i] + gradient
            self.anchor[i] = self.anchor[i] - self.rate * (gradient + self.momentum * self.velocity[i])

    def mix(self, share: float, which: list[int]) -> None:
        """The ranks' weights become share * theirs + (1 - share) * the anchor."""
        weights = self.world.weights()
        for row in weights:
            for i in which:
                row[i] = share * row[i] + (1 - share) * self.anchor[i]
        self.world.set_weights(weights)


@case(1, 2, 3)
def diloco_equals_the_simulated_world() -> None:
    model, optimizer = _wrapped(DiLoCoAlgorithm(interval=2, outer_learning_rate=0.5, outer_momentum=0.8))
    world = World()
    outer = _Outer(world, 0.5, 0.8)
    for step in range(STEPS):
        train_step(model, optimizer, step)
        world.backward(step)
        world.step()
        if step % 2 == 1:
            outer.step(world.weights(), [0, 1, 2, 3])
            outer.mix(0.0, [0, 1, 2, 3])
        assert_weights(model, world.mine(), tolerance=1e-5)


@case(2)
def streaming_diloco_merges_late_and_takes_turns() -> None:
    """Two fragments, each exchanged every four steps, merged a step later, half of it."""
    with _small_buckets():
        model, optimizer = _wrapped(
            DiLoCoAlgorithm(interval=4, outer_learning_rate=0.5, outer_momentum=0.8, fragments=2, delay=1, mix=0.5)
        )
    world = World()
    outer = _Outer(world, 0.5, 0.8)
    names = [name for name, _ in model.named_parameters()]
    buckets = [[names.index(name) for name in bucket.tensor_names] for bucket in model.bagua_buckets]
    assert len(buckets) > 2, buckets
    rounds, pending = 0, -1
    for step in range(1, 13):
        train_step(model, optimizer, step)
        world.backward(step)
        world.step()
        if pending >= 0:
            outer.mix(0.5, [i for b, members in enumerate(buckets) if b % 2 == pending for i in members])
            pending = -1
        schedule_step = step - 2
        if schedule_step >= 0 and schedule_step % 2 == 0:
            pending, rounds = rounds % 2, rounds + 1
            outer.step(world.weights(), [i for b, m in enumerate(buckets) if b % 2 == pending for i in m])
        assert_weights(model, world.mine(), tolerance=1e-5)
