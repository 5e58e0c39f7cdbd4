"""Where the weights lie that BlueFog's optimizers combine, and what their users do with optimizers, models and weights
beside training.
"""

from __future__ import annotations

import copy
import gc
import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pelton.bluefog.torch as bf
import torch
from pelton.bluefog.torch.optimizers import CommunicationType, DistributedPushSumOptimizer
from pelton.errors import FailedPrecondition, InvalidArgument
from torch import nn

from cases.bluefog_optimizers import Make, Net, World, assert_equal, loss_of, net_of, raises, sgd
from cases.registry import case

STEPS = 4
COMBINING: tuple[Make, ...] = (bf.DistributedAdaptWithCombineOptimizer, bf.DistributedAdaptThenCombineOptimizer)


def _reference(make: Make, world: Any, number: int) -> None:
    """Of two ranks: the mean of both."""
    world.backward(number)
    if make is COMBINING[1]:
        world.step()
    world.mix(lambda weights: [[(a + b) / 2 for a, b in zip(*weights)] for _ in weights])
    if make is COMBINING[0]:
        world.step()


def _train(make: Make, prepare: Callable[[Net], Any], check: Callable[[Net, Any], None]) -> None:
    """Against the reference, bit by bit, with what `prepare` has made of the net held throughout."""
    net, world = net_of(bf.rank()), World(2)
    optimizer = make(sgd(net), net)
    held = prepare(net)
    for number in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, bf.rank(), number).backward()
        optimizer.step()
        _reference(make, world, number)
        assert_equal(net, world)
        check(net, held)


def _returns(value: Any, net: Net) -> Any:
    return value


@case(2)
def weights_move_between_two_buffers() -> None:
    """Nothing is copied: the storages go from one to the other and back, and places begin where PyTorch would align."""
    bf.init()
    for make in COMBINING:
        addresses: list[int] = []
        _train(make, partial(_returns, addresses), lambda net, found: found.append(net.first.weight.data_ptr()))
        assert addresses[0] != addresses[1] and addresses[:2] == addresses[2:], addresses
        assert all(address % 64 == 0 for address in addresses), addresses


@case(2)
def what_was_exported_stays_right() -> None:
    """While an array, or a tensor that is a view, holds a weight's memory, that stays where it is."""
    bf.init()

    def stays(net: Net, held: Any) -> None:
        array, view, address = held
        assert bool((torch.from_numpy(array) == net.first.weight.detach()).all())
        assert torch.equal(view, net.second.bias.data)
        assert net.first.weight.data_ptr() == address

    for make in COMBINING:
        _train(
            make,
            lambda net: (net.first.weight.detach().numpy(), net.second.bias.data, net.first.weight.data_ptr()),
            stays,
        )


@case(2)
def weights_that_cannot_move_are_copied() -> None:
    """Views of other memory, not contiguous, of no elements, of no dimension; and some that others hold already."""
    bf.init()
    rank = bf.rank()
    whole = torch.full((10,), float(rank))
    base = torch.full((3, 2), 2.0 * rank)
    held = nn.Parameter(torch.full((4,), 4.0 * rank))
    alias = held.data
    weights = [
        nn.Parameter(whole[2:5]),
        nn.Parameter(base.t()),
        nn.Parameter(torch.zeros(0)),
        nn.Parameter(torch.tensor(6.0 * rank)),
        held,
    ]
    net = nn.ParameterList(weights)
    for make in COMBINING:
        with torch.no_grad():
            for weight, factor in zip(weights, (1.0, 2.0, 3.0, 6.0, 4.0)):
                weight.fill_(factor * rank)
        optimizer = make(torch.optim.SGD(net.parameters(), lr=0.0), net)
        for _ in range(2):
            optimizer.step()
        assert [weight.sum().item() for weight in weights] == [1.5, 6.0, 0.0, 3.0, 8.0], weights
        assert whole.tolist() == [float(rank)] * 2 + [0.5] * 3 + [float(rank)] * 5, whole
        assert alias.data_ptr() == held.data_ptr() and alias.tolist() == [2.0] * 4


@case(2)
def weights_of_other_memory_and_types_are_combined() -> None:
    """What is done to a model after its optimizer was made: other memory, another type, memory for other processes."""
    bf.init()

    def replace(net: Net) -> None:
        net.first.weight.data = net.first.weight.data.clone()
        net.second.share_memory()

    def convert(net: Net) -> None:
        net.float()
        net.double()

    for change in (replace, convert):
        net, world = net_of(bf.rank()), World(2)
        optimizer = COMBINING[0](sgd(net), net)
        for number in range(STEPS):
            if number == 2:
                change(net)
                for one in world.nets if change is convert else ():
                    convert(one)
            optimizer.zero_grad()
            loss_of(net, bf.rank(), number).backward()
            optimizer.step()
            _reference(COMBINING[0], world, number)
            assert_equal(net, world)

    pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = COMBINING[0](torch.optim.SGD(pair.parameters(), lr=0.0), pair)
    pair[1].double()
    raises(InvalidArgument, "parameter 2: is of Double by now.*make the optimizer anew", optimizer.step)
    pair[1].float()
    optimizer.step()


@case(2)
def weights_outlive_their_optimizer() -> None:
    """And an optimizer that nobody holds any more communicates nothing, whatever forward passes there are."""
    bf.init()
    net = net_of(bf.rank())
    optimizer = COMBINING[0](sgd(net), net)
    loss_of(net, bf.rank(), 0).backward()
    optimizer.step()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    address = net.first.weight.data_ptr()
    del optimizer
    gc.collect()
    others = [bf.allreduce(torch.full_like(weight, 7.0)) for weight in before]
    if bf.rank() == 0:  # alone: an average with the other rank would never end
        loss_of(net, 0, 1).backward()
    bf.barrier()
    assert all(torch.equal(was, now) for was, now in zip(before, net.parameters())), others
    assert net.first.weight.data_ptr() == address


@case(2)
def a_backward_pass_after_the_step_is_refused_by_autograd() -> None:
    """As after any operation in place, because what it needs has been replaced."""
    bf.init()
    for make in COMBINING:
        net = net_of(bf.rank())
        optimizer = make(torch.optim.SGD(net.parameters(), lr=0.0), net)
        loss = loss_of(net, bf.rank(), 0)
        loss.backward(retain_graph=True)
        optimizer.step()
        raises(RuntimeError, "modified by an inplace operation", loss.backward)


@case(2)
def models_are_copied_and_saved_whole() -> None:
    """A copy's forward passes are no passes of the model, and it has weights of its own."""
    bf.init()
    net, world = net_of(bf.rank()), World(2)
    optimizer = COMBINING[0](sgd(net), net)
    for number in range(STEPS):
        copied = copy.deepcopy(net)
        loss_of(copied, bf.rank(), number).backward()
        optimizer.zero_grad()
        loss_of(net, bf.rank(), number).backward()
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        loss_of(loaded, bf.rank(), number).backward()
        optimizer.step()
        for before, also in zip(copied.parameters(), loaded.parameters()):
            assert torch.equal(before, also)
        _reference(COMBINING[0], world, number)
        assert_equal(net, world)


@case(2)
def a_scheduler_of_the_first_optimizer_goes_on() -> None:
    """It puts a step() of its own into that optimizer, which is not the one that combines."""
    bf.init()
    kinds: tuple[Make, ...] = (*COMBINING, bf.DistributedGradientAllreduceOptimizer, bf.DistributedWinPutOptimizer)
    for make in kinds:
        net = net_of(bf.rank())
        plain = sgd(net)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(plain, 0.5)
        optimizer = make(plain, net)
        assert "step" not in vars(optimizer)
        loss_of(net, bf.rank(), 0).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.step()
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.05
        state = optimizer.state_dict()
        assert set(state) == set(plain.state_dict())
        optimizer.load_state_dict(state)
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.025
        if hasattr(optimizer, "unregister_window"):
            optimizer.unregister_window()


@case(2)
def one_rank_may_leave_parameters_unused() -> None:
    """They are combined all the same, and stepped where they have a gradient."""
    bf.init()
    for make in COMBINING:
        used, unused = (
            nn.Parameter(torch.full((3,), float(bf.rank()))),
            nn.Parameter(torch.full((2,), float(bf.rank()))),
        )
        net = nn.ParameterList([used, unused])
        optimizer = make(torch.optim.SGD(net.parameters(), lr=1.0), net)
        if bf.rank() == 1:
            used.sum().backward()
        optimizer.step()
        stepped = 0.0 if make is COMBINING[1] else 0.5 - bf.rank()  # 1 steps from 1 to 0, or from the mean
        assert used.tolist() == [stepped] * 3, used
        assert unused.tolist() == [0.5] * 2, unused


@case(2)
def what_is_stepped_then_combined_changes_from_step_to_step() -> None:
    bf.init()
    net, world = net_of(bf.rank()), World(2)
    optimizer = bf.DistributedAdaptThenCombineOptimizer(sgd(net), net, num_steps_per_communication=2)
    kinds = (CommunicationType.empty, CommunicationType.allreduce, CommunicationType.neighbor_allreduce)
    for number in range(6):
        optimizer.communication_type = kinds[number % 3]
        optimizer.zero_grad()
        for part in (0, 1):  # two backward passes: the sum of both is stepped
            loss_of(net, bf.rank(), 2 * number + part).backward()
            world.backward(2 * number + part, clears=part == 0)
        optimizer.step()
        world.step()
        if number % 3 > 0:
            world.mix(lambda weights: [[(a + b) / 2 for a, b in zip(*weights)] for _ in weights])
        assert_equal(net, world)


@case(2)
def what_cannot_be_combined_is_refused() -> None:
    bf.init()
    net = net_of(0)
    wrong: Any = "allreduce"
    for make in (bf.DistributedAdaptWithCombineOptimizer, bf.DistributedAdaptThenCombineOptimizer):
        raises(InvalidArgument, "must be a CommunicationType", partial(make, sgd(net), net, wrong))
        raises(
            InvalidArgument,
            "is 'allreduce'; must",
            partial(setattr, make(sgd(net), net), "communication_type", wrong),
        )
        lbfgs = torch.optim.LBFGS(net.parameters())
        raises(InvalidArgument, "LBFGS evaluates.*such as SGD", partial(make, lbfgs, net))


def _early(net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    made = bf.DistributedAdaptThenCombineOptimizer(optimizer, net)
    made.steps_in_backward = True
    return made


@case(2, 3, 4)
def the_backward_pass_steps_and_combines() -> None:
    """What step() would do, bit by bit, with each kind of optimizer, before step() is called."""
    bf.init(bf.RingGraph)
    kinds: list[Callable[[Any], torch.optim.Optimizer]] = [
        partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        partial(torch.optim.AdamW, lr=0.01),
        partial(torch.optim.RMSprop, lr=0.01),
        partial(torch.optim.Adagrad, lr=0.1),
    ]
    for kind in kinds:
        net, other = net_of(bf.rank()), net_of(bf.rank())
        early = _early(net, kind(net.parameters()))
        late = bf.DistributedAdaptThenCombineOptimizer(kind(other.parameters()), other)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(early, 0.5)
        same = torch.optim.lr_scheduler.ExponentialLR(late, 0.5)
        for number in range(STEPS):
            for one, optimizer in ((net, early), (other, late)):
                optimizer.zero_grad()
                loss = loss_of(one, bf.rank(), number)
                before = one.scale.detach().clone()
                loss.backward()
                assert torch.equal(before, one.scale) == (one is other)
                optimizer.step()
            scheduler.step()
            same.step()
            for mine, theirs in zip(net.parameters(), other.parameters()):
                assert torch.equal(mine, theirs), (number, kind)


@case(2)
def a_function_that_was_registered_steps_in_the_backward_pass() -> None:
    bf.init()

    class Halves(torch.optim.SGD):
        """One that Pelton does not know."""

    def step(_: Any, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        parameter.sub_(0.5 * group["lr"] * gradient)

    net, other = net_of(bf.rank()), net_of(bf.rank())
    early = bf.DistributedAdaptThenCombineOptimizer(Halves(net.parameters(), lr=1.0), net)
    late = bf.DistributedAdaptThenCombineOptimizer(Halves(other.parameters(), lr=1.0), other)
    raises(
        InvalidArgument, "Halves may not.*register_step_function", partial(setattr, early, "steps_in_backward", True)
    )
    early.register_step_function(step)
    late.register_step_function(step)
    early.steps_in_backward = True
    for number in range(STEPS):
        for one, optimizer in ((net, early), (other, late)):
            optimizer.zero_grad()
            loss_of(one, bf.rank(), number).backward()
            optimizer.step()
        for mine, theirs in zip(net.parameters(), other.parameters()):
            assert torch.equal(mine, theirs), number


@case(2)
def what_comes_too_late_for_the_backward_pass_is_told() -> None:
    bf.init()
    net = net_of(bf.rank())
    optimizer = _early(net, sgd(net))
    loss_of(net, bf.rank(), 0).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    raises(FailedPrecondition, "has stepped already", partial(setattr, optimizer, "steps_in_backward", False))
    raises(FailedPrecondition, "gradient of parameter '.*' was changed.*steps_in_backward = False", optimizer.step)

    layer = nn.Linear(3, 2)  # whose backward pass needs no weights: autograd notices no change
    optimizer = _early(layer, sgd(layer))
    parts = [layer(torch.ones(1, 3)).sum() for _ in (0, 1)]
    parts[0].backward()
    raises(FailedPrecondition, "parameter '.*' has got a gradient in a second backward pass", parts[1].backward)
    bf.barrier()


@case(2)
def step_does_what_the_backward_pass_does_not() -> None:
    """A parameter without a gradient, other kinds of communication, accumulation, and passes that are not due."""
    bf.init()
    kinds = (CommunicationType.empty, CommunicationType.allreduce, CommunicationType.neighbor_allreduce)
    net, other = net_of(bf.rank()), net_of(bf.rank())
    optimizers = []
    for one in (net, other):
        unused = nn.Parameter(torch.full((3,), float(bf.rank()), dtype=torch.float64))
        one.register_parameter("unused", unused)
        plain = sgd(one)
        optimizers.append(bf.DistributedAdaptThenCombineOptimizer(plain, one, num_steps_per_communication=2))
    optimizers[0].steps_in_backward = True
    for number in range(9):
        for one, optimizer in zip((net, other), optimizers):
            optimizer.communication_type = kinds[number % 3]
            optimizer.zero_grad()
            for part in (0, 1):
                loss_of(one, bf.rank(), 2 * number + part).backward()
            if number == 7:
                optimizer.steps_in_backward = False
            optimizer.step()
        for mine, theirs in zip(net.parameters(), other.parameters()):
            assert torch.equal(mine, theirs), number


@case(2)
def push_sum_goes_on_from_what_a_program_writes() -> None:
    """A broadcast after the optimizer was made, as BlueFog's examples have it, and a change between steps."""
    bf.init()
    net = net_of(bf.rank())
    optimizer = DistributedPushSumOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), net)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(net, bf.rank(), 0).backward()
        optimizer.step()

    wanted = [parameter.detach() for parameter in net_of(0).parameters()]
    bf.broadcast_parameters(net.state_dict(), root_rank=0)
    for factor in (1.0, 2.0):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(factor)
        step()
        bf.barrier()  # nobody sends the next shares before all have collected these
        wanted = [factor * value for value in wanted]
        for parameter, value in zip(net.parameters(), wanted):
            assert torch.allclose(parameter, value, rtol=1e-14, atol=0), (factor, (parameter - value).abs().max())
    optimizer.unregister_window()
    raises(FailedPrecondition, "make it anew", optimizer.step)


@case(2)
def a_forward_pass_that_could_not_begin_may_come_again() -> None:
    """One rank's arguments are wrong once; the other waits for it, and both combine in the same step."""
    bf.init()
    net, world = net_of(bf.rank()), World(2)
    optimizer = bf.DistributedAdaptWithCombineOptimizer(sgd(net), net)
    if bf.rank() == 1:
        optimizer.self_weight = 0.5
        raises(InvalidArgument, "give both or none", lambda: loss_of(net, 1, 0))
        optimizer.self_weight = None
    for number in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, bf.rank(), number).backward()
        optimizer.step()
        _reference(COMBINING[0], world, number)
        assert_equal(net, world)


@case(2)
def what_was_synchronized_is_combined_once() -> None:
    bf.init(bf.RingGraph)
    second = partial(bf.DistributedAdaptWithCombineOptimizer, num_steps_per_communication=2)
    for make, interval in ((COMBINING[0], 1), (COMBINING[1], 1), (second, 2)):
        net, world = net_of(bf.rank()), World(2)
        optimizer = make(sgd(net), net)
        optimizer.self_weight, optimizer.src_weights = 0.75, {1 - bf.rank(): 0.25}
        for number in range(STEPS):
            optimizer.zero_grad()
            loss_of(net, bf.rank(), number).backward()
            optimizer.synchronize()
            if make is COMBINING[1]:
                raises(FailedPrecondition, "call step\\(\\) alone", optimizer.skip_synchronize)
                optimizer.step()
            elif number % 3 == 0:
                optimizer.step()
            else:
                with optimizer.skip_synchronize():
                    optimizer.step()
            world.backward(number)
            if make is COMBINING[1]:
                world.step()
            if (number + 1) % interval == 0:
                world.mix(
                    lambda weights: [[0.75 * a + 0.25 * b for a, b in zip(x, y)] for x, y in (weights, weights[::-1])]
                )
            if make is not COMBINING[1]:
                world.step()
            assert_equal(net, world)


@case(2)
def windows_of_an_optimizer_that_was_not_made_are_freed() -> None:
    bf.init()
    net = nn.Linear(3, 2)
    turned = nn.Parameter(torch.ones(2, 3).t())
    net.register_parameter("turned", turned)
    before = bf.get_current_created_window_names()
    make = partial(bf.DistributedWinPutOptimizer, sgd(net), net, window_prefix="again")
    raises(InvalidArgument, "not contiguous", make)
    assert bf.get_current_created_window_names() == before
    turned.data = turned.data.contiguous()
    make().unregister_window()
