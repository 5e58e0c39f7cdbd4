"""Runs the same training code on a plain model, under torch's DDP on gloo, and under Pelton's algorithms."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.torch_api.algorithms import Algorithm
from pelton.torch_api.algorithms.one_bit_adam import OneBitAdamOptimizer
from pelton.torch_api.algorithms.q_adam import QAdamOptimizer
from pelton.torch_api.algorithms.zero_one_adam import ZeroOneAdamOptimizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cases.checks import batch, rank_and_size
from cases.torch_world import beside_gloo

STEPS = 6
WARM_UP = 2
ROWS = 4  # of a rank's batch
Weights = list[torch.Tensor]
Optimizers = Sequence[torch.optim.Optimizer]
Program = Callable[["World"], Any]  # trains a model and returns it


class World:
    """Where a program runs: alone on all ranks' data, under DDP, or under one of Pelton's algorithms.

    Threads: the test's. Owns: nothing.
    """

    def wrap(self, model: Any, optimizers: Optimizers = ()) -> Any:
        """What the program calls in the model's place from now on."""
        return model

    def optimizer(self, parameters: Any, lr: float = 0.05) -> torch.optim.Optimizer:
        """The optimizer that the algorithm asks for."""
        return torch.optim.SGD(parameters, lr=lr)

    def batch(self, step: int, *shape: int) -> torch.Tensor:
        """The data of a step: everybody's."""
        return torch.cat([batch(rank, step, *(shape or (ROWS, 6))) for rank in range(rank_and_size()[1])])


class OnRank(World):
    """A rank's world: its own data, and what wraps models. Threads: the test's. Owns: nothing."""

    def __init__(self, wrapping: Callable[[Any, Optimizers], Any]) -> None:
        self._wrapping = wrapping

    def wrap(self, model: Any, optimizers: Optimizers = ()) -> Any:
        return self._wrapping(model, optimizers)

    def batch(self, step: int, *shape: int) -> torch.Tensor:
        return batch(rank_and_size()[0], step, *(shape or (ROWS, 6)))


@dataclass(frozen=True)
class Kind:
    """One of the algorithms, with what it is tried with. Threads: a value. Owns: nothing."""

    name: str
    options: dict[str, Any]
    optimizer: type[Any] | None = None


ALGORITHMS = {
    kind.name: kind
    for kind in (
        Kind("gradient_allreduce", {}),
        Kind("bytegrad", {"hierarchical": False}),
        Kind("decentralized", {"hierarchical": False}),
        Kind("low_precision_decentralized", {"hierarchical": False}),
        Kind("local_sgd", {"interval": 2}),
        Kind("post_local_sgd", {"warmup_steps": WARM_UP, "interval": 2}),
        Kind("diloco", {"interval": 2}),
        Kind("slowmo", {"interval": 2, "base": "ring"}),
        Kind("choco_sgd", {}),
        Kind("exact_diffusion", {}),
        Kind("gradient_tracking", {}),
        Kind("push_sum", {}),
        Kind("quasi_global_momentum", {}),
        Kind("noloco", {"interval": 2}),
        Kind("qadam", {"hierarchical": False}, QAdamOptimizer),
        Kind("one_bit_adam", {"hierarchical": False}, OneBitAdamOptimizer),
        Kind("zero_one_adam", {}, ZeroOneAdamOptimizer),
    )
}
BY_GRADIENTS = ("gradient_allreduce", "bytegrad")
EVERY = tuple(ALGORITHMS)
BY_STEPS = (
    "low_precision_decentralized",
    "choco_sgd",
    "exact_diffusion",
    "gradient_tracking",
    "push_sum",
    "quasi_global_momentum",
    "noloco",
    "local_sgd",
    "post_local_sgd",
    "diloco",
    "slowmo",
    "qadam",
    "one_bit_adam",
)


class Under(OnRank):
    """Under one of Pelton's algorithms. Threads: the test's. Owns: nothing."""

    def __init__(self, kind: Kind, group: Any = None) -> None:
        """Args: group: the ranks that take part; None: all."""
        super().__init__(self._with_bagua)
        self.kind = kind
        self.group = group

    def optimizer(self, parameters: Any, lr: float = 0.05) -> torch.optim.Optimizer:
        if self.kind.optimizer is None:
            return super().optimizer(parameters, lr)
        stages = {} if self.kind.optimizer is ZeroOneAdamOptimizer else {"warmup_steps": WARM_UP}
        return self.kind.optimizer(parameters, lr=0.01, **stages)

    def _with_bagua(self, model: Any, optimizers: Optimizers) -> Any:
        options: dict[str, Any] = dict(self.kind.options)
        if self.kind.optimizer is not None:
            mine = [given for given in optimizers if isinstance(given, self.kind.optimizer)]
            options[_ARGUMENT[self.kind.name]] = mine[0] if mine else self.optimizer(model.parameters())
        return model.with_bagua(optimizers, Algorithm.init(self.kind.name, **options), self.group)


_ARGUMENT = {
    "qadam": "q_adam_optimizer",
    "one_bit_adam": "one_bit_adam_optimizer",
    "zero_one_adam": "zero_one_adam_optimizer",
}


def weights_of(program: Program, world: World) -> Weights:
    """A copy of what the program leaves; the ranks begin apart."""
    torch.manual_seed(11 + (rank_and_size()[0] if isinstance(world, OnRank) else 0))
    found = program(world)
    models = found if isinstance(found, tuple) else (found,)
    weights = [p.detach().clone() for model in models for p in model.parameters()]
    for model in models:
        inner = getattr(model, "bagua_ddp", None)
        if inner is not None:
            inner.detach()
    return weights


def under(name: str, program: Program) -> Weights:
    return weights_of(program, Under(ALGORITHMS[name]))


def assert_as_ddp(program: Program, exactly: bool = True, alone: bool = True) -> None:
    """The program ends with DDP's weights under gradient_allreduce, and with those of one process on all data."""
    ours = under("gradient_allreduce", program)
    with beside_gloo() as gloo:
        theirs = weights_of(program, OnRank(lambda model, _: DistributedDataParallel(model, process_group=gloo)))
    for i, (mine, wanted) in enumerate(zip(ours, theirs, strict=True)):
        if exactly:
            assert torch.equal(mine, wanted), f"tensor {i}: {(mine - wanted).abs().max()} from DDP"
        torch.testing.assert_close(mine, wanted)
    if alone:
        for mine, wanted in zip(ours, weights_of(program, World()), strict=True):
            torch.testing.assert_close(mine, wanted)


def assert_same_under(names: Sequence[str], habit: Program, plain: Program) -> None:
    """Under each algorithm the habit leaves, bit by bit, the weights of the plain program."""
    for name in names:
        wanted = under(name, plain)
        for i, (found, value) in enumerate(zip(under(name, habit), wanted, strict=True)):
            assert torch.equal(found, value), f"{name}: tensor {i} differs by {(found - value).abs().max()}"


def assert_refused(names: Sequence[str], habit: Program, *texts: str, ends_job: bool = False) -> None:
    """Under each algorithm the habit ends, on every rank, with an error whose text has all of these; within backward
    it may end all communication of the job.
    """
    for name in names:
        try:
            under(name, habit)
        except bagua_errors as error:
            for text in texts:
                assert text in str(error), f"{name}: {text!r} is not in: {error}"
        else:
            raise AssertionError(f"{name}: no error was raised")
        if ends_job:
            with contextlib.suppress(RuntimeError):
                bagua.destroy_process_group()
            bagua.init_process_group(torch_distributed=False)
        bagua.barrier()


bagua_errors = (RuntimeError, ValueError)


class Net(nn.Module):
    """A small model with a method that trains it, too. Threads: the test's. Owns: its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs).tanh())

    def loss(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.forward(inputs).square().mean()


Loss = Callable[[Any, torch.Tensor], torch.Tensor]


def of_output(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    return model(inputs).square().mean()


def training(world: World, model: Any, loss: Loss = of_output, prepare: Callable[[Any], object] = id) -> Any:
    optimizer = world.optimizer(model.parameters())
    wrapped = world.wrap(model, [optimizer])
    prepare(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(wrapped, world.batch(step)).backward()
        optimizer.step()
    return model


def plain(world: World) -> Any:
    return training(world, Net())
