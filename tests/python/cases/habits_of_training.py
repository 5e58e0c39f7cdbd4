"""Ways of training: each works as under DDP, or is refused on every rank. The rows of docs/python.md's table."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.device_mesh
from torch import nn

from cases.checks import rank_and_size
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


@case(2)
def two_backward_passes_of_one_graph() -> None:
    def habit(world: World) -> Any:
        model = Net()
        optimizer = world.optimizer(model.parameters())
        wrapped = world.wrap(model, [optimizer])
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = of_output(wrapped, world.batch(step))
            (loss / 2).backward(retain_graph=True)
            (loss / 2).backward()
            optimizer.step()
        return model

    assert_same_under(("decentralized", "local_sgd", "diloco"), habit, plain)


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
