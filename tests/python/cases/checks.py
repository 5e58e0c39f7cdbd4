"""What cases share: models, data, and what one process would have computed."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from torch import nn

Loss = Callable[[Any, torch.Tensor], torch.Tensor]
Gradients = dict[str, Any]  # None where there is none
SHAPE = (4, 6)  # of the batches of the small models


def rank_and_size() -> tuple[int, int]:
    return bagua.get_rank(), bagua.get_world_size()


@contextlib.contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Files of this process, shared memory among them, grow no further: the system itself refuses it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def seeded(seed: int, make: Callable[[], Any]) -> Any:
    """A model whose values depend on the seed alone."""
    torch.manual_seed(seed)
    return make()


def batch(rank: int, step: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The input of a rank in a step; every rank can make everybody's."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(*shape, generator=generator, dtype=torch.float32).to(dtype)


def square_loss(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    return model(inputs).float().square().mean()


def wrap(model: Any, optimizers: Sequence[torch.optim.Optimizer] = (), **options: bool) -> Any:
    return model.with_bagua(list(optimizers), GradientAllReduceAlgorithm(**options))


def gradients(model: Any) -> Gradients:
    return {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def local_gradients(model: Any, inputs: torch.Tensor, loss: Loss = square_loss) -> Gradients:
    """What one process computes for one rank's batch; the model keeps nothing of it."""
    kept = {parameter: parameter.grad for parameter in model.parameters()}
    for parameter in kept:
        parameter.grad = None
    loss(model, inputs).backward()
    found = gradients(model)
    for parameter, gradient in kept.items():
        parameter.grad = gradient
    return found


def mean(contributions: Sequence[torch.Tensor | None], average: bool = True) -> torch.Tensor | None:
    """The mean as Pelton defines it (SUM-1): added in rank order, missing ones as zeros; 16-bit types in float32,
    rounded once."""
    used = [c for c in contributions if c is not None]
    if not used:
        return None
    dtype = used[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = torch.zeros_like(used[0], dtype=wide)
    for i, contribution in enumerate(contributions):
        term = torch.zeros_like(total) if contribution is None else contribution.to(wide)
        total = term.clone() if i == 0 else total + term
    return (total / len(contributions) if average else total).to(dtype)


def mean_of(per_rank: Sequence[Gradients], average: bool = True) -> Gradients:
    return {name: mean([found[name] for found in per_rank], average) for name in per_rank[0]}


def make_mlp() -> Any:
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def expected(make: Callable[[], Any], step: int = 0) -> Gradients:
    """What one process computes for all ranks' batches of a step, with rank 0's parameters."""
    _, size = rank_and_size()
    model = seeded(0, make)
    return mean_of([local_gradients(model, batch(r, step, *SHAPE)) for r in range(size)])


def run_backward(model: Any, step: int = 0) -> None:
    square_loss(model, batch(bagua.get_rank(), step, *SHAPE)).backward()


def assert_same(actual: Gradients, expected: Gradients) -> None:
    """Bitwise, and None where None is expected."""
    assert actual.keys() == expected.keys(), (list(actual), list(expected))
    for name, wanted in expected.items():
        found = actual[name]
        if wanted is None or found is None:
            assert found is wanted, f"{name}: gradient is {found}, expected {wanted}"
        else:
            assert found.dtype == wanted.dtype, f"{name}: {found.dtype} instead of {wanted.dtype}"
            assert torch.equal(found, wanted), f"{name}: differs by {(found.double() - wanted.double()).abs().max()}"


def assert_same_on_all_ranks(tensors: Sequence[torch.Tensor]) -> None:
    """Bitwise equal on every rank."""
    for i, tensor in enumerate(tensors):
        own = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        everyones = torch.zeros(bagua.get_world_size(), own.numel(), dtype=torch.uint8)
        bagua.allgather(own, everyones)
        assert all(torch.equal(row, own) for row in everyones), f"tensor {i} differs between ranks"


@contextlib.contextmanager
def raises(kind: type[BaseException], *texts: str) -> Iterator[None]:
    """The block must raise this error, and its text must contain all of `texts`."""
    try:
        yield
    except kind as error:
        for text in texts:
            assert text in str(error), f"{text!r} is not in: {error}"
        return
    raise AssertionError(f"no {kind.__name__} was raised")
