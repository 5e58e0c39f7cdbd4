"""A rank of test_accelerate.py. Prints a line for each check that holds; errors end it."""

from __future__ import annotations

from typing import Any

import pelton
import pelton.torch_api as bagua
import pytest
import torch
from pelton.accelerate import Accelerator
from pelton.errors import InvalidArgument
from torch import nn

STEPS = 8


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * rank + step))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def by_wrap(algorithm: str, every: int) -> torch.Tensor:
    model, optimizer = make()
    model = pelton.wrap(model, optimizer, algorithm)
    for step in range(STEPS):
        is_last = (step + 1) % every == 0
        machinery: Any = model.bagua_ddp
        machinery.require_backward_grad_sync = is_last
        (model(batch(pelton.rank(), step)).square().sum() / every).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def by_accelerate(algorithm: str, every: int) -> torch.Tensor:
    accelerator = Accelerator(algorithm=algorithm, cpu=True, gradient_accumulation_steps=every)
    assert accelerator.num_processes == 2
    model, optimizer = accelerator.prepare(*make())
    for step in range(STEPS):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch(accelerator.process_index, step)).square().sum())
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def check(algorithm: str, every: int) -> None:
    mine = by_accelerate(algorithm, every)
    assert torch.equal(mine, by_wrap(algorithm, every))
    first = mine.clone()
    bagua.broadcast(first, src=0)
    assert torch.equal(mine, first), "the ranks differ"


def check_wrapped_before() -> None:
    """A model that has been wrapped keeps its algorithm."""
    accelerator = Accelerator(algorithm="bytegrad", cpu=True)
    model, optimizer = make()
    pelton.wrap(model, optimizer, "gradient_allreduce")
    machinery: Any = model.bagua_ddp
    prepared, optimizer = accelerator.prepare(model, optimizer)
    assert prepared is model and model.bagua_ddp is machinery
    for step in range(STEPS):
        accelerator.backward(model(batch(accelerator.process_index, step)).square().sum())
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(weights(model), by_wrap("gradient_allreduce", 1))


if __name__ == "__main__":
    with pytest.raises(InvalidArgument, match="without an optimizer"):
        Accelerator(cpu=True).prepare(make()[0])
    teacher = Accelerator(cpu=True).prepare(make()[0].requires_grad_(False))
    assert "bagua_ddp" not in teacher.__dict__, "a frozen model needs no communication"
    print("refused", flush=True)
    check("gradient_allreduce", 1)
    print("trained", flush=True)
    check("bytegrad", 2)
    print("accumulated", flush=True)
    check_wrapped_before()
    print("wrapped before", flush=True)
