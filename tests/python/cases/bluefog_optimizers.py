"""BlueFog's optimizers, step by step against one process that holds all ranks' weights and adds in the same order."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pelton.bluefog.torch as bf
import torch
from pelton.bluefog.common.util import env
from pelton.bluefog.torch import _windows
from pelton.bluefog.torch.optimizers import CommunicationType
from pelton.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from torch import nn
from torch.amp.grad_scaler import GradScaler

from cases.registry import case

STEPS = 5
RATE = 0.1
Make = Callable[[torch.optim.Optimizer, nn.Module], Any]
Weights = list[list[torch.Tensor]]  # by rank
Matrix = list[list[float]]
Mix = Callable[[Weights], Weights]


def raises(kind: type[BaseException], pattern: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        assert re.search(pattern, str(error)), f"{pattern!r} is not in: {error}"
        return
    raise AssertionError(f"no {kind.__name__} was raised, which would say {pattern!r}")


class Net(nn.Module):
    """With a parameter of its own beside those of its layers, and one that is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 7)
        self.third = nn.Linear(7, 7)
        self.third.weight = self.second.weight
        self.scale = nn.Parameter(torch.ones(7))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(inputs)) * self.scale
        return self.third(torch.tanh(self.second(hidden)))


def net_of(rank: int) -> Net:
    """Each rank begins with weights of its own: nothing is broadcast."""
    torch.manual_seed(rank)
    return Net().double()


def loss_of(net: nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    targets = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    return (net(inputs) - targets).square().mean()


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)


def _sum(terms: list[torch.Tensor]) -> torch.Tensor:
    """One after the other, as Pelton adds."""
    total = terms[0].clone()
    for term in terms[1:]:
        total += term
    return total


def _mixed(weights: Weights, matrix: Matrix, *, is_mean: bool = True) -> Weights:
    """Row r of the matrix makes rank r's: its own term first, then the others' by rank. Where `is_mean`, a row of equal
    weights is a sum and then one division.
    """

    def combined(rank: int, i: int) -> torch.Tensor:
        row = matrix[rank]
        ranks = sorted((r for r in range(len(row)) if row[r] != 0), key=lambda r: (r != rank, r))
        if is_mean and all(row[r] == 1 / len(ranks) for r in ranks):
            return _sum([weights[r][i] for r in ranks]) / len(ranks)
        return _sum([row[r] * weights[r][i] for r in ranks])

    return [[combined(rank, i) for i in range(len(weights[rank]))] for rank in range(len(weights))]


def _by_neighbors(matrix: Matrix) -> Mix:
    return lambda weights: _mixed(weights, matrix)


def _by_all(weights: Weights) -> Weights:
    """An allreduce adds in the order of the ranks."""
    means = [_sum(list(tensors)) / len(weights) for tensors in zip(*weights)]
    return [[mean.clone() for mean in means] for _ in weights]


def _matrix(size: int) -> Matrix:
    """What the topology of this rank's job does, as BlueFog weighs it without weights: uniformly."""
    graph = bf.load_topology()
    rows = []
    for rank in range(size):
        sources = [r for r in graph.predecessors(rank) if r != rank]
        share = 1 / (len(sources) + 1)
        rows.append([share if r == rank or r in sources else 0.0 for r in range(size)])
    return rows


class World:
    """All ranks' nets in one process. Threads: one. Owns: them."""

    def __init__(self, size: int) -> None:
        self.nets = [net_of(rank) for rank in range(size)]
        self.optimizers = [sgd(net) for net in self.nets]

    def weights(self) -> Weights:
        return [[p.detach().clone() for p in net.parameters()] for net in self.nets]

    def set(self, weights: Weights) -> None:
        with torch.no_grad():
            for net, values in zip(self.nets, weights):
                for parameter, value in zip(net.parameters(), values):
                    parameter.copy_(value)

    def mix(self, mix: Mix) -> None:
        self.set(mix(self.weights()))

    def backward(self, step: int, clears: bool = True) -> None:
        for rank, net in enumerate(self.nets):
            if clears:
                net.zero_grad()
            loss_of(net, rank, step).backward()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


def assert_equal(net: nn.Module, world: World) -> None:
    """Bit by bit."""
    for (name, mine), theirs in zip(net.named_parameters(), world.nets[bf.rank()].parameters()):
        assert torch.equal(mine, theirs), (name, (mine - theirs).abs().max())


def _assert_near(net: nn.Module, world: World) -> None:
    """Of what adds in an order of its own."""
    for (name, mine), theirs in zip(net.named_parameters(), world.nets[bf.rank()].parameters()):
        assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-13), (name, (mine - theirs).abs().max())


def _assert_equal_inside_a_host(net: nn.Module, world: World) -> None:
    """Of an allreduce, which between hosts adds in the order of its schedule."""
    (_assert_near if "PELTON_TEST_RANKS_PER_HOST" in os.environ else assert_equal)(net, world)


Check = Callable[[nn.Module, World], None]


def _train(make: Make, reference: Callable[[World, int], None], check: Check = assert_equal) -> None:
    net, world = net_of(bf.rank()), World(bf.size())
    optimizer = make(sgd(net), net)
    assert isinstance(optimizer, torch.optim.SGD)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, bf.rank(), step).backward()
        optimizer.step()
        reference(world, step)
        check(net, world)


def _awc(mix: Mix) -> Callable[[World, int], None]:
    def step(world: World, number: int) -> None:
        world.backward(number)
        world.mix(mix)
        world.step()

    return step


def _atc(mix: Mix) -> Callable[[World, int], None]:
    def step(world: World, number: int) -> None:
        world.backward(number)
        world.step()
        world.mix(mix)

    return step


@case(1, 2, 3, 4, 8)
def weights_are_combined_then_stepped() -> None:
    bf.init(bf.RingGraph)
    step = _awc(_by_neighbors(_matrix(bf.size())))
    _train(bf.DistributedAdaptWithCombineOptimizer, step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        _train(bf.DistributedNeighborAllreduceOptimizer, step)
        _train(bf.DistributedAllreduceOptimizer, _awc(_by_all), _assert_equal_inside_a_host)
    _train(lambda o, net: bf.DistributedNeighborAllreduceOptimizer(o, net.named_parameters()), step)
    _train(lambda o, _: bf.DistributedNeighborAllreduceOptimizer(o), step)


@case(1, 2, 3, 4, 8)
def weights_are_stepped_then_combined() -> None:
    bf.init(bf.ExponentialTwoGraph)
    _train(bf.DistributedAdaptThenCombineOptimizer, _atc(_by_neighbors(_matrix(bf.size()))))
    everybody = CommunicationType.allreduce
    make = lambda o, net: bf.DistributedAdaptThenCombineOptimizer(o, net, everybody)  # noqa: E731
    _train(make, _atc(_by_all), _assert_equal_inside_a_host)


@case(2)
def optimizers_of_every_kind_step_by_their_own_code() -> None:
    """BlueFog steps five kinds by code of its own, of which one failed."""
    bf.init()
    for kind in (torch.optim.RMSprop, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.NAdam):
        net, world = net_of(bf.rank()), World(2)
        world.optimizers = [kind(one.parameters(), lr=0.01) for one in world.nets]
        optimizer = bf.DistributedAdaptThenCombineOptimizer(kind(net.parameters(), lr=0.01), net)
        for number in range(STEPS):
            optimizer.zero_grad()
            loss_of(net, bf.rank(), number).backward()
            optimizer.step()
            _atc(_by_all)(world, number)
            assert_equal(net, world)


@case(2)
def frozen_parameters_and_models_without_children_take_part() -> None:
    """A parameter that is frozen, then thawed; and a model that is nothing but a layer, which BlueFog refuses."""
    bf.init()
    net = nn.Linear(3, 2).double()
    with torch.no_grad():
        net.weight.fill_(bf.rank())
        net.bias.fill_(4.0 * bf.rank())
    net.bias.requires_grad_(False)
    optimizer = bf.DistributedAdaptWithCombineOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), net)
    net(torch.ones(1, 3).double()).sum().backward()
    optimizer.step()
    assert net.weight.eq(0.5).all() and net.bias.eq(2).all(), (net.weight, net.bias)
    net.bias.requires_grad_(True)
    with torch.no_grad():
        net.bias.fill_(6.0 * bf.rank())
    net(torch.ones(1, 3).double()).sum().backward()
    optimizer.step()
    assert net.bias.eq(3).all(), net.bias


@case(2)
def a_registered_function_steps() -> None:
    """It steps twice as far as the optimizer's own code does without momentum, and rounds in another way."""
    bf.init()

    def step(_: Any, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        parameter.sub_(2 * group["lr"] * gradient)

    net, world = net_of(bf.rank()), World(2)
    world.optimizers = [torch.optim.SGD(one.parameters(), lr=2 * RATE) for one in world.nets]
    optimizer = bf.DistributedAdaptThenCombineOptimizer(sgd(net), net)
    optimizer.register_step_function(step)
    for number in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, bf.rank(), number).backward()
        optimizer.step()
        _atc(_by_all)(world, number)
        _assert_near(net, world)


@case(4)
def machines_are_combined() -> None:
    """Two machines of two ranks each."""
    with env(BLUEFOG_NODES_PER_MACHINE="2"):
        bf.init(bf.RingGraph)
    bf.set_machine_topology(bf.RingGraph(2))
    kind = CommunicationType.hierarchical_neighbor_allreduce
    make = lambda o, net: bf.DistributedAdaptWithCombineOptimizer(o, net, kind)  # noqa: E731
    _train(make, _awc(_by_all), _assert_near)  # both machines know each other: the mean of all


@case(2, 3, 8)
def gradients_are_averaged() -> None:
    bf.init()
    net, old, single = net_of(0), net_of(0), net_of(0)
    plain = sgd(single)
    optimizer = bf.DistributedGradientAllreduceOptimizer(sgd(net), net)
    older = bf.DistributedAllreduceOptimizer(sgd(old), old.named_parameters())
    is_equal = torch.allclose if "PELTON_TEST_RANKS_PER_HOST" in os.environ else torch.equal
    for step in range(STEPS):
        for model, opt in ((net, optimizer), (old, older)):
            opt.zero_grad()
            loss_of(model, bf.rank(), step).backward()
            opt.step()
        gradients = [
            torch.autograd.grad(loss_of(single, rank, step), tuple(single.parameters())) for rank in range(bf.size())
        ]
        for parameter, terms in zip(single.parameters(), zip(*gradients)):
            parameter.grad = _sum(list(terms)) / bf.size()
        plain.step()
        for one, two, wanted in zip(net.parameters(), old.parameters(), single.parameters()):
            assert is_equal(one, wanted), (one - wanted).abs().max()
            assert torch.equal(one, two)


@case(2)
def a_gradient_that_one_rank_lacks_counts_as_zero() -> None:
    bf.init()
    used, unused = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    net = nn.ParameterList([used, unused])
    optimizer = bf.DistributedGradientAllreduceOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net)
    if bf.rank() == 1:
        (used * torch.arange(3.0)).sum().backward()
    optimizer.step()
    assert torch.equal(used.data, -torch.arange(3.0) / 2), used
    assert unused.grad is None


@case(2, 4)
def the_jth_forward_pass_communicates() -> None:
    """Local steps between, and accumulation; weights that are not communicated stay each rank's own."""
    bf.init(bf.RingGraph)
    mix = _by_neighbors(_matrix(bf.size()))

    def local_steps(world: World, number: int) -> None:
        _awc(mix if number % 2 == 1 else lambda weights: weights)(world, number)

    _train(lambda o, net: bf.DistributedAdaptWithCombineOptimizer(o, net, num_steps_per_communication=2), local_steps)

    net, world = net_of(bf.rank()), World(bf.size())
    optimizer = bf.DistributedAdaptThenCombineOptimizer(sgd(net), net, num_steps_per_communication=2)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in (0, 1):
            loss_of(net, bf.rank(), 2 * step + part).backward()
            world.backward(2 * step + part, clears=part == 0)
        optimizer.step()
        world.step()
        world.mix(mix)
        assert_equal(net, world)


@case(4)
def what_is_communicated_changes_from_step_to_step() -> None:
    bf.init(bf.ExponentialTwoGraph)
    size, rank = bf.size(), bf.rank()
    net, world = net_of(rank), World(size)
    optimizer = bf.DistributedAdaptWithCombineOptimizer(sgd(net), net)
    for step in range(9):
        distance = step % (size - 1) + 1
        matrix = [[0.5 if s in (r, (r - distance) % size) else 0.0 for s in range(size)] for r in range(size)]
        mix = _by_neighbors(matrix)
        kind = ("neighbor", "empty", "allreduce")[step // 3]
        if kind == "neighbor":
            optimizer.self_weight, optimizer.src_weights = 0.5, {(rank - distance) % size: 0.5}
            optimizer.dst_weights, optimizer.enable_topo_check = [(rank + distance) % size], True
        elif kind == "empty":
            optimizer.communication_type, mix = CommunicationType.empty, lambda weights: weights
        else:
            optimizer.communication_type, mix = CommunicationType.allreduce, _by_all
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        optimizer.step()
        _awc(mix)(world, step)
        _assert_equal_inside_a_host(net, world)


@case(2, 3, 4, 8)
def windows_bring_the_ranks_together() -> None:
    """With a barrier in each communication it is the average of what was put."""
    bf.init(bf.RingGraph)
    reference = _awc(_by_neighbors(_matrix(bf.size())))
    net, world = net_of(bf.rank()), World(bf.size())
    make = lambda: bf.DistributedWinPutOptimizer(sgd(net), net, window_prefix="first")  # noqa: E731
    optimizer = make()
    optimizer.force_barrier = True
    raises(InvalidArgument, "there is a window 'first", make)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, bf.rank(), step).backward()
        optimizer.step()
        bf.barrier()  # nobody puts the next weights before all have read these
        reference(world, step)
        assert_equal(net, world)
    optimizer.unregister_window()
    assert bf.get_current_created_window_names() == []


class ThreeBuckets(nn.Module):
    """One of three dtypes each, of which the second one's elements are not equally many on all ranks."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.full((4,), 1.0 + rank))
        self.second = nn.Parameter(torch.full((3 + 100 * rank,), 2.0, dtype=torch.float64))
        self.third = nn.Parameter(torch.full((2,), 3.0 + rank, dtype=torch.bfloat16))

    def forward(self) -> torch.Tensor:
        sums = [parameter.sum().double() for parameter in self.parameters()]
        return (1.0 + bf.rank()) * (sums[0] + sums[1] + sums[2])


@case(2)
def what_fails_for_one_bucket_changes_no_weight_and_no_gradient() -> None:
    bf.init(bf.RingGraph)
    kinds: list[Make] = [
        bf.DistributedAdaptWithCombineOptimizer,
        bf.DistributedAdaptThenCombineOptimizer,
        bf.DistributedGradientAllreduceOptimizer,
    ]
    for make in kinds:
        net = ThreeBuckets(bf.rank())
        before = [parameter.detach().clone() for parameter in net.parameters()]
        optimizer = make(torch.optim.SGD(net.parameters(), lr=0.0), net)
        net().backward()
        gradients = [_gradient_of(parameter).clone() for parameter in net.parameters()]
        raises(InvalidArgument, "differ|count is", optimizer.step)
        assert all(map(torch.equal, net.parameters(), before))
        assert all(map(torch.equal, map(_gradient_of, net.parameters()), gradients))
        if make is bf.DistributedGradientAllreduceOptimizer:
            continue
        # What the other buckets' operations have made of that step comes in no later one.
        optimizer.communication_type = CommunicationType.empty
        net().backward()
        optimizer.step()
        assert all(map(torch.equal, net.parameters(), before))
    bf.shutdown()


def _gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


@case(2)
def windows_are_all_made_or_none() -> None:
    bf.init(bf.RingGraph)
    net = net_of(bf.rank())
    create = _windows.win_create

    def scarce(tensor: torch.Tensor, name: str, zero_init: bool = False) -> bool:
        if name == "second.weight":
            raise ResourceExhausted("no memory is left, call win_create again on all ranks")
        return create(tensor, name, zero_init)

    with patch.object(_windows, "win_create", scarce):
        raises(ResourceExhausted, "no memory", lambda: bf.DistributedWinPutOptimizer(sgd(net), net))
    assert bf.get_current_created_window_names() == []
    bf.DistributedWinPutOptimizer(sgd(net), net).unregister_window()
    bf.shutdown()


@case(2, 4, 8)
def what_is_pulled_is_averaged() -> None:
    from pelton.bluefog.torch.optimizers import DistributedPullGetOptimizer

    bf.init(bf.RingGraph)
    reference = _awc(_by_neighbors(_matrix(bf.size())))
    net, world = net_of(bf.rank()), World(bf.size())
    optimizer = DistributedPullGetOptimizer(sgd(net), net)
    optimizer.force_barrier = True
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, bf.rank(), step).backward()
        optimizer.step()
        bf.barrier()
        reference(world, step)
        assert_equal(net, world)
    optimizer.unregister_window()


@case(2, 3, 4, 8)
def push_sum_is_right_on_a_star() -> None:
    """Where ranks have unequally many neighbors: x and w by the matrix of shares, gradients at z = x / w."""
    from pelton.bluefog.torch.optimizers import DistributedPushSumOptimizer

    bf.init(bf.StarGraph)
    size, graph = bf.size(), bf.load_topology()
    out = [[r for r in graph.successors(s) if r != s] for s in range(size)]
    shares = [[1 / (len(out[s]) + 1) if r == s or r in out[s] else 0.0 for s in range(size)] for r in range(size)]
    net, world = net_of(bf.rank()), World(size)
    optimizer = DistributedPushSumOptimizer(sgd(net), net)
    biased, weight = world.weights(), [torch.ones((), dtype=torch.float64) for _ in range(size)]
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, bf.rank(), step).backward()
        optimizer.step()
        bf.barrier()  # nobody sends the next shares before all have collected these
        world.backward(step)  # at z
        world.set(biased)
        world.step()
        biased = _mixed(world.weights(), shares, is_mean=False)
        weight = [w[0] for w in _mixed([[w] for w in weight], shares, is_mean=False)]
        world.set([[x / weight[r] for x in biased[r]] for r in range(size)])
        assert_equal(net, world)
    optimizer.unregister_window()


@case(2)
def a_model_that_is_called_past_its_hooks_is_combined() -> None:
    bf.init()
    net, world = net_of(bf.rank()), World(2)
    optimizer = bf.DistributedAdaptWithCombineOptimizer(sgd(net), net)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net.forward, bf.rank(), step).backward()  # type: ignore[arg-type]
        optimizer.step()
        _awc(_by_all)(world, step)
        assert_equal(net, world)


@case(2)
def schedulers_states_and_closures_work() -> None:
    bf.init()
    net, world = net_of(bf.rank()), World(2)
    optimizer = bf.DistributedAdaptWithCombineOptimizer(sgd(net), net)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    theirs = [torch.optim.lr_scheduler.ExponentialLR(one, 0.5) for one in world.optimizers]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, bf.rank(), step)
        loss.backward()
        return loss

    for step in range(STEPS):
        assert torch.is_tensor(optimizer.step(closure))
        scheduler.step()
        _awc(_by_all)(world, step)
        for one in theirs:
            one.step()
        assert_equal(net, world)
        optimizer.load_state_dict(optimizer.state_dict())


@case(2)
def what_would_train_apart_is_refused() -> None:
    bf.init()
    net = net_of(0)
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    raises(InvalidArgument, "2 of its parameters are not in", lambda: bf.DistributedWinPutOptimizer(stranger, net))
    optimizer = bf.DistributedAdaptThenCombineOptimizer(sgd(net), net)
    group = {"params": [nn.Parameter(torch.zeros(1))]}
    raises(FailedPrecondition, "make a new one of an optimizer that has all", lambda: optimizer.add_param_group(group))
    raises(InvalidArgument, "already", lambda: bf.DistributedAdaptThenCombineOptimizer(optimizer, net))
    zero: Any = {"num_steps_per_communication": 0}
    raises(InvalidArgument, "is 0; must be", lambda: bf.DistributedAdaptThenCombineOptimizer(sgd(net), net, **zero))
    put = bf.DistributedWinPutOptimizer(sgd(net), net)
    net.first.weight.data = net.first.weight.data.clone()
    raises(FailedPrecondition, "has been replaced", lambda: loss_of(net, 0, 0))
    put.unregister_window()


def _scaled_step(scaler: GradScaler, optimizer: Any, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@case(2)
def an_overflow_on_one_rank_puts_no_rank_out_of_step() -> None:
    bf.init()
    rank = bf.rank()
    for make, ends in (
        (lambda o, m: bf.DistributedGradientAllreduceOptimizer(o, m), [-1.0, -1.0, -101.0, -1101.0]),
        (lambda o, m: bf.DistributedAdaptWithCombineOptimizer(o, m, CommunicationType.neighbor_allreduce), None),
        (lambda o, m: bf.DistributedAdaptThenCombineOptimizer(o, m, CommunicationType.neighbor_allreduce), None),
    ):
        model = nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = make(torch.optim.SGD(model.parameters(), lr=1.0 if ends else 0.0), model)
        scaler = GradScaler("cpu", init_scale=4.0)
        for step in range(4):
            if ends is None:  # each step combines what the step has begun with, and nothing older
                with torch.no_grad():
                    model.weight.fill_(100.0 * step + rank)
            factor = float("inf") if (rank, step) == (1, 1) else 10.0**step
            _scaled_step(scaler, optimizer, factor * model(torch.ones(1, 1)).sum())
            assert model.weight.item() == (ends[step] if ends else 100.0 * step + 0.5), (step, model.weight)
        assert scaler.get_scale() == (2.0 if rank == 1 else 4.0)


@case(2)
def what_the_backward_pass_steps_goes_without_a_scaler() -> None:
    bf.init()
    net = nn.Linear(2, 2)
    optimizer = bf.DistributedAdaptThenCombineOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net, CommunicationType.neighbor_allreduce
    )
    optimizer.steps_in_backward = True
    loss = net(torch.ones(1, 2)).sum()
    raises(FailedPrecondition, "steps_in_backward", lambda: _scaled_step(GradScaler("cpu"), optimizer, loss))
