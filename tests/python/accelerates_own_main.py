"""A rank of test_accelerate.py under Accelerate's own class: `accelerates_own_main.py FOLDER plain|wrapped`.

`plain` is what somebody has written for Accelerate, and knows nothing of Pelton; `wrapped` prepares models that
`pelton.wrap` has wrapped. The weights are left in the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import accelerate
import torch
import torch.distributed as dist
from torch import nn

STEPS = 8


def train(prepare: Callable[[Any, nn.Module, torch.optim.Optimizer], tuple[Any, Any]]) -> Any:
    """Some steps with accumulation; returns the model that was prepared."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert accelerator.num_processes == 2
    prepared, optimizer = prepare(accelerator, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * accelerator.process_index + step)
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(torch.randn(4, 8, generator=generator)).square().mean())
            accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return prepared


def backend() -> str:
    group: Any = dist.group.WORLD
    return type(group._get_backend(torch.device("cpu"))).__module__


def save(name: str, model: nn.Module) -> None:
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.save(weights, f"{sys.argv[1]}/{name}_{dist.get_rank()}.pt")


def plain() -> None:
    model = train(lambda accelerator, *parts: accelerator.prepare(*parts))
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    save(backend(), model)


def wrapped() -> None:
    import pelton
    from pelton.torch_api import is_initialized

    for algorithm in ("gradient_allreduce", "decentralized"):

        def prepare(accelerator: Any, model: Any, optimizer: Any, algorithm: str = algorithm) -> tuple[Any, Any]:
            if not is_initialized():
                pelton.init()
            model = pelton.wrap(model, optimizer, algorithm)
            return accelerator.prepare_model(model, evaluation_mode=True), accelerator.prepare_optimizer(optimizer)

        model = train(prepare)
        assert not isinstance(model, nn.parallel.DistributedDataParallel)
        assert model.bagua_ddp.statistics()["rounds"] > 0
        save(algorithm, model)


if __name__ == "__main__":
    plain() if sys.argv[2] == "plain" else wrapped()
