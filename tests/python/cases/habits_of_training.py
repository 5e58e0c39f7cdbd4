"""Ways of training: each works as under DDP, or is refused on every rank. The rows of docs/python.md's table."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, cast

import pelton
import pelton.torch_api as bagua
import torch
import torch.distributed.device_mesh
from pelton.errors import FailedPrecondition, PeltonError
from pelton.torch_api.algorithms import Algorithm
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from torch import nn

from cases.checks import assert_same_on_all_ranks, batch, raises, rank_and_size
from cases.programs import (
    BY_STEPS,
    EVERY,
    STEPS,
    Net,
    World,
    assert_as_ddp,
    assert_refused,
    assert_same_under,
    of_output,
    plain,
    training,
    under,
    weights_of,
)
from cases.registry import case


@case(2)
def in_evaluation_mode() -> None:
    def habit(world: World) -> Any:
        return training(world, Net(), prepare=nn.Module.eval)

    assert_as_ddp(habit)
    assert_same_under(EVERY, habit, plain)


@case(2)
def by_a_method() -> None:
    def habit(world: World) -> Any:
        return training(world, Net(), loss=lambda wrapped, inputs: wrapped.loss(inputs))

    assert_same_under(EVERY, habit, plain)


@dataclasses.dataclass
class _Output:
    loss: torch.Tensor


class _Returning(Net):
    """What it returns is no pytree. Threads: the test's. Owns: its layers."""

    def forward(self, inputs: torch.Tensor) -> Any:
        return _Output(super().forward(inputs).square().mean())


@case(2)
def outputs_that_are_no_pytree() -> None:
    def habit(world: World) -> Any:
        return training(world, _Returning(), loss=lambda wrapped, inputs: wrapped(inputs).loss)

    assert_as_ddp(habit)
    assert_same_under(EVERY, habit, plain)


@case(2)
def an_optimizer_that_was_replaced() -> None:
    def habit(world: World) -> Any:
        model = Net()
        wrapped = world.wrap(model, [world.optimizer(model.parameters())])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(STEPS):
            optimizer.zero_grad()
            of_output(wrapped, world.batch(step)).backward()
            optimizer.step()
        return model

    assert_as_ddp(habit)
    assert_same_under(("gradient_allreduce", "bytegrad", "decentralized"), habit, plain)
    assert_refused(BY_STEPS, habit, "SGD.step()", "'first.weight' of Net", "with_bagua", "on all ranks")


@case(2)
def an_optimizer_that_was_not_given() -> None:
    def habit(world: World) -> Any:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        wrapped = world.wrap(model, [])
        for step in range(STEPS):
            optimizer.zero_grad()
            of_output(wrapped, world.batch(step)).backward()
            optimizer.step()
        return model

    assert_same_under(("gradient_allreduce", "bytegrad", "decentralized"), habit, plain)
    by_steps = ("low_precision_decentralized", "local_sgd", "post_local_sgd", "diloco")
    assert_refused(by_steps, habit, "no optimizer steps first.weight", "with_bagua")
    assert_refused(("qadam", "one_bit_adam"), habit, "not among them")


def _by_hand(write: Callable[[Any], None]) -> Callable[[World], Any]:
    def habit(world: World) -> Any:
        model = Net()
        wrapped = world.wrap(model, [world.optimizer(model.parameters())])
        for step in range(STEPS):
            model.zero_grad()
            of_output(wrapped, world.batch(step)).backward()
            for parameter in model.parameters():
                write(parameter)
        return model

    return habit


def _in_place(parameter: Any) -> None:
    with torch.no_grad():
        parameter.sub_(parameter.grad, alpha=0.05)


def _in_data(parameter: Any) -> None:
    parameter.data.sub_(parameter.grad, alpha=0.05)


@case(2)
def steps_without_an_optimizer() -> None:
    for write in (_in_place, _in_data):
        assert_as_ddp(_by_hand(write))
        assert_same_under(("gradient_allreduce", "bytegrad", "decentralized"), _by_hand(write), plain)
        assert_refused(
            BY_STEPS, _by_hand(write), "Net_", "changed between two backward passes", "did not step", "with_bagua"
        )


@case(2)
def a_step_that_one_rank_skips() -> None:
    def habit(world: World) -> Any:
        model: Any = _Returning()
        optimizer = world.optimizer(model.parameters())
        wrapped = world.wrap(model, [optimizer])
        for step in range(STEPS):
            optimizer.zero_grad()
            wrapped(world.batch(step)).loss.backward()
            if step != 1 or rank_and_size()[0] != 0:
                optimizer.step()
        assert model.bagua_ddp.statistics()["rounds"] == STEPS
        return model

    assert_same_under(("decentralized",), habit, habit)


def _assert_one_step(backward: Callable[[Any, torch.Tensor], None]) -> None:
    """Several backward passes make the gradient of one."""

    def habit(world: World) -> Any:
        model = Net()
        optimizer = world.optimizer(model.parameters())
        wrapped = world.wrap(model, [optimizer])
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(wrapped, world.batch(step))
            optimizer.step()
        return model

    assert_same_under(("decentralized", "local_sgd", "diloco"), habit, plain)


@case(2)
def two_backward_passes_of_one_graph() -> None:
    def backward(model: Any, inputs: torch.Tensor) -> None:
        loss = of_output(model, inputs)
        (loss / 2).backward(retain_graph=True)
        (loss / 2).backward()

    _assert_one_step(backward)


@case(2)
def two_forward_passes_with_a_backward_pass_each() -> None:
    """The second one needs the weights that its forward pass has seen."""

    def backward(model: Any, inputs: torch.Tensor) -> None:
        losses = [of_output(model, inputs) / 2 for _ in range(2)]
        for loss in losses:
            loss.backward()

    _assert_one_step(backward)


@case(2)
def a_parameter_thawed_and_trained_by_a_method() -> None:
    def habit(world: World) -> Any:
        model = Net()
        model.second.weight.requires_grad_(False)
        optimizer = world.optimizer(model.parameters())
        wrapped = world.wrap(model, [optimizer])
        for step in range(STEPS):
            if step == 2:
                model.second.weight.requires_grad_(True)
            optimizer.zero_grad()
            wrapped.loss(world.batch(step)).backward()
            optimizer.step()
        return model

    refused = tuple(name for name in EVERY if name not in ("qadam", "one_bit_adam", "zero_one_adam"))
    assert_refused(refused, habit, "'second.weight' of Net", "not communicated", "thawed", "on all ranks")


@case(2)
def a_new_head_trained_by_forward_passes() -> None:
    def habit(world: World) -> Any:
        model = Net()
        wrapped = world.wrap(model, [world.optimizer(model.parameters())])
        model.second = nn.Linear(10, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            wrapped(world.batch(0))
        told = [warning for warning in caught if "not there when it was wrapped" in str(warning.message)]
        assert len(told) == 1 and "second.weight, second.bias: " in str(told[0].message), caught
        assert told[0].filename == __file__, told[0].filename
        for step in range(STEPS):
            optimizer.zero_grad()
            of_output(wrapped, world.batch(step)).backward()
            optimizer.step()
        assert_same_on_all_ranks(list(model.parameters()))
        return model

    assert_same_under(("gradient_allreduce", "bytegrad"), habit, habit)


@case(2)
def a_new_head_trained_by_a_method() -> None:
    def habit(world: World) -> Any:
        model = Net()
        for parameter in model.first.parameters():
            parameter.requires_grad_(False)
        wrapped = world.wrap(model, [world.optimizer(model.second.parameters())])
        model.second = nn.Linear(10, 3)
        optimizer = torch.optim.SGD(model.second.parameters(), lr=0.1)
        wrapped.loss(world.batch(0)).backward()
        optimizer.step()
        return model

    assert_refused(("gradient_allreduce",), habit, "'second.weight' of Net", "replaced, added or thawed")


@case(2)
def gradients_accumulated_in_no_sync() -> None:
    def habit(world: World) -> Any:
        model = Net()
        optimizer = world.optimizer(model.parameters())
        wrapped: Any = world.wrap(model, [optimizer])
        for step in range(STEPS):
            optimizer.zero_grad()
            with getattr(wrapped, "no_sync", contextlib.nullcontext)():
                (of_output(wrapped, world.batch(2 * step)) / 2).backward()
            (of_output(wrapped, world.batch(2 * step + 1)) / 2).backward()
            optimizer.step()
        return model

    assert_as_ddp(habit)


@case(2)
def a_parameter_thawed_between_a_pass_in_no_sync_and_the_one_that_communicates() -> None:
    """What the former has accumulated is communicated although the model is registered anew, and although the latter
    makes no gradient of it.
    """

    def habit(world: World) -> Any:
        model = Net()
        model.second.requires_grad_(False)
        optimizer = world.optimizer(model.parameters())
        wrapped: Any = world.wrap(model, [optimizer])
        for step in range(STEPS):
            optimizer.zero_grad()
            with getattr(wrapped, "no_sync", contextlib.nullcontext)():
                of_output(wrapped, world.batch(2 * step)).backward()
            if step == 1:
                model.second.requires_grad_(True)
                model.first.requires_grad_(False)
            of_output(wrapped, world.batch(2 * step + 1)).backward()
            optimizer.step()
            model.first.requires_grad_(True)
        return model

    ours = under("gradient_allreduce", habit)
    for mine, wanted in zip(ours, weights_of(habit, World()), strict=True):
        torch.testing.assert_close(mine, wanted)


@case(2)
def an_optimizer_that_steps_parameters_of_no_wrapped_model() -> None:
    model, loss = Net(), nn.Linear(3, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.05)
    wrapped = cast(Any, model).with_bagua([optimizer], "gradient_allreduce")
    assert "2 parameters (first [2, 3])" in str(pelton.check(wrapped, optimizer))

    def steps() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(2):
                optimizer.zero_grad()
                loss(wrapped(batch(rank_and_size()[0], step, 4, 6))).square().mean().backward()
                optimizer.step()
        return [str(warning.message) for warning in caught if "no wrapped model has" in str(warning.message)]

    said = steps()
    assert len(said) == 1 and "2 parameters (first [2, 3])" in said[0], said
    cast(Any, loss).with_bagua([optimizer], "gradient_allreduce")
    wrapped.with_bagua([optimizer], "gradient_allreduce")
    assert steps() == []
    assert_same_on_all_ranks([*model.parameters(), *loss.parameters()])


@case(1, 2)
def optimizers_that_step_nothing_of_the_model_that_they_were_given_with() -> None:
    def sgd(model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def said(models: list[Any], optimizers: list[torch.optim.Optimizer], given: list[list[int]]) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for model, numbers in zip(models, given, strict=True):
                model.with_bagua([optimizers[number] for number in numbers], "gradient_allreduce")
            for _ in range(2):
                for model in models:
                    model(batch(rank_and_size()[0], 0, 4, 6)).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
        told = [warning for warning in caught if "steps none of its parameters" in str(warning.message)]
        assert all(warning.filename == __file__ and "SGD was given" in str(warning.message) for warning in told), told
        return len(told)

    first: Any = Net()
    second: Any = Net()
    optimizers = [sgd(first), sgd(second)]
    assert said([first, second], optimizers, [[0, 1], [0, 1]]) == 0, "those of two models are given with each"
    assert said([first, second], optimizers, [[1], [0]]) == 2, "the wrong one"
    assert said([first], [optimizers[0], sgd(nn.Linear(3, 2))], [[0, 1]]) == 1, "one of no wrapped model"
    assert said([first], [optimizers[0], torch.optim.SGD([{"params": []}], lr=0.05)], [[0, 1]]) == 0, (
        "one without parameters"
    )
    third: Any = Net()
    later = [optimizers[0], sgd(third)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first.with_bagua(later, "gradient_allreduce")
        first(batch(rank_and_size()[0], 0, 4, 6)).square().mean().backward()
        later[0].step()
    assert not caught, "its own model may be wrapped later"
    assert said([third], later, [[0, 1]]) == 0
    first.second.requires_grad_(False)
    assert said([first], [sgd(first.second), sgd(first.first)], [[0, 1]]) == 0, "of what may be thawed"
    first.first, first.second = Net().first, Net().second
    assert said([first], [optimizers[0]], [[0]]) == 1, "parameters were replaced"
    assert "steps none of its parameters: 'SGD'" in str(pelton.check(first))


@case(2)
def a_step_whose_backward_was_before_the_model_was_wrapped_again() -> None:
    """It uses gradients of all ranks. Those that were assigned later are refused, as before; none at all are not."""
    model: Any = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    wrap_again = functools.partial(model.with_bagua, [optimizer], "gradient_allreduce")

    def backward() -> None:
        optimizer.zero_grad()
        model(batch(rank_and_size()[0], 0, 4, 6)).square().mean().backward()

    wrap_again()
    backward()
    wrap_again()
    optimizer.step()
    assert_same_on_all_ranks(list(model.parameters()))
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    wrap_again()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with raises(FailedPrecondition, "not made by a backward pass"):
        optimizer.step()


@case(2)
def gradients_that_are_differentiated_further() -> None:
    """A second backward pass through them is averaged; what torch.autograd.grad makes of them is warned of."""

    def habit(world: World) -> Any:
        model = Net()
        optimizer = world.optimizer(model.parameters())
        wrapped: Any = world.wrap(model, [optimizer])
        for step in range(STEPS):
            optimizer.zero_grad()
            of_output(wrapped, world.batch(step)).backward(create_graph=True)
            sum(parameter.grad.square().sum() for parameter in wrapped.parameters()).backward()
            optimizer.step()
        return model

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = under("gradient_allreduce", habit)
        (told,) = (w for w in caught if "create_graph=True" in str(w.message) and "Net_" in str(w.message))
        assert told.filename == __file__, f"{told.filename}:{told.lineno}"
        before = len(caught)
        under("local_sgd", habit)
        assert not any("Net_" in str(warning.message) for warning in caught[before:])
        for mine, wanted in zip(ours, weights_of(habit, World()), strict=True):
            torch.testing.assert_close(mine, wanted)


@case(2)
def an_optimizer_that_steps_within_backward() -> None:
    def habit(world: World) -> Any:
        model = Net()
        wrapped = world.wrap(model, [world.optimizer(model.parameters())])
        for parameter in model.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.1)
            parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
        of_output(wrapped, world.batch(0)).backward()
        return model

    for name in EVERY:  # in a group of its own: an error within backward ends the job's rounds
        assert_refused((name,), habit, "steps within backward", "after backward() has returned", ends_job=True)


class _Skipped(nn.Module):
    """A net that leaves out its only layer when told."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.is_skipped = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs if self.is_skipped else nn.functional.linear(inputs, self.layer.weight)


@case(2)
def a_forward_pass_that_returns_its_input() -> None:
    rank, _ = rank_and_size()
    model: Any = _Skipped()
    wrapped = model.with_bagua([torch.optim.SGD(model.parameters(), lr=0.1)], GradientAllReduceAlgorithm())
    for step in range(3):
        model.is_skipped = step == 1
        inputs = torch.full((2, 4), float(rank)).requires_grad_()
        if model.is_skipped:
            with raises(PeltonError, "returned its input itself", "view_as"):
                wrapped(inputs)
            with torch.no_grad():
                assert wrapped(inputs) is inputs
        else:
            wrapped(inputs).sum().backward()
    assert wrapped.bagua_ddp.statistics()["rounds"] == 2


@case(2)
def perturbed_weights_within_a_step() -> None:
    """Sharpness-aware minimisation by hand: two backward passes, of which the second sees other weights."""

    def habit(world: World) -> Any:
        model = Net()
        optimizer = world.optimizer(model.parameters())
        wrapped = world.wrap(model, [optimizer])
        for step in range(STEPS):
            of_output(wrapped, world.batch(step)).backward()
            kept = [parameter.detach().clone() for parameter in model.parameters()]
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.add_(parameter.grad, alpha=0.01)
            optimizer.zero_grad()
            of_output(wrapped, world.batch(step)).backward()
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), kept):
                    parameter.copy_(value)
            optimizer.step()
            optimizer.zero_grad()
        return model

    for name in ("local_sgd", "qadam"):
        under(name, habit)
    assert_as_ddp(habit)


@case(2)
def a_hook_that_steps_by_hand_within_backward() -> None:
    """By `.data`, which autograd does not count, and in small steps."""

    def habit(world: World) -> Any:
        model = Net()
        wrapped = world.wrap(model, [world.optimizer(model.parameters())])

        def step(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None
            parameter.data.add_(gradient, alpha=-1e-3)

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for number in range(3):
            model.zero_grad()
            of_output(wrapped, world.batch(number)).backward()
        return model

    for name in ("gradient_allreduce", "bytegrad"):
        assert_refused((name,), habit, "changed the parameter", "after backward() has returned", ends_job=True)


@case(2)
def gradients_assigned_by_hand() -> None:
    def assigned(world: World, slopes_of: Callable[[Any, torch.Tensor], list[torch.Tensor]], first: int) -> Any:
        model = Net()
        optimizer = world.optimizer(model.parameters())
        wrapped = world.wrap(model, [optimizer])
        for step in range(STEPS):
            optimizer.zero_grad()
            if step < first:
                of_output(wrapped, world.batch(step)).backward()
            else:
                for parameter, slope in zip(model.parameters(), slopes_of(model, world.batch(step))):
                    parameter.grad = slope
            optimizer.step()
        return model

    def of_function(model: Any, inputs: torch.Tensor) -> list[torch.Tensor]:
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

        def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.func.functional_call(model, weights, (inputs,)).square().mean()

        return list(torch.func.grad(loss)(weights).values())

    def of_graph(model: Any, inputs: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(of_output(model, inputs), list(model.parameters())))

    for first in (0, 2):
        for slopes_of in (of_function, of_graph):
            habit = functools.partial(assigned, slopes_of=slopes_of, first=first)
            assert_refused(
                ("gradient_allreduce", "bytegrad", "qadam", "one_bit_adam", "zero_one_adam"),
                habit,
                "gradient of 'first.weight' of Net",
                "not made by a backward pass",
                "no_sync()",
            )
        habit = functools.partial(assigned, slopes_of=of_function, first=first)
        assert_refused(("decentralized",), habit, "backward pass")
    assert_same_under(("local_sgd", "diloco"), functools.partial(assigned, slopes_of=of_function, first=0), plain)


@case(2)
def one_backward_and_two_steps() -> None:
    def habit(world: World) -> Any:
        model = Net()
        optimizer = world.optimizer(model.parameters())
        wrapped = world.wrap(model, [optimizer])
        for step in range(STEPS):
            optimizer.zero_grad()
            of_output(wrapped, world.batch(step)).backward()
            for _ in range(3):
                optimizer.step()
        return model

    assert_as_ddp(habit)


@case(2)
def averaging_beside_training_in_evaluation_mode_and_by_a_method() -> None:
    for prepare, loss in ((nn.Module.eval, of_output), (id, lambda model, inputs: model.loss(inputs))):
        model: Any = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        model.with_bagua([optimizer], Algorithm.init("async", sync_interval_ms=0))
        prepare(model)
        step = 0
        while model.bagua_ddp.statistics()["rounds"] < 3:
            optimizer.zero_grad()
            loss(model, batch(rank_and_size()[0], step, 4, 6)).backward()
            optimizer.step()
            step += 1
        model.bagua_algorithm.abort(model)
        for parameter in model.parameters():
            everyones = torch.zeros(rank_and_size()[1], parameter.numel())
            bagua.allgather(parameter.detach().reshape(-1), everyones)
            torch.testing.assert_close(everyones[0], everyones[1])
        model.bagua_ddp.detach()
