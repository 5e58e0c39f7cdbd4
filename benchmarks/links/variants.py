"""What the training benchmark compares: each makes the ranks train one model."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

MOMENTUM = 0.9


@dataclass(frozen=True)
class Variant:
    """A way to train. Threads: a value. Owns: its options."""

    name: str
    hook: str = ""  # of DDP
    algorithm: str = ""  # "module.Class" below pelton.torch_api.algorithms; "": DDP
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: str = ""  # class in the same module, instead of SGD


VARIANTS = (
    Variant("ddp"),
    Variant("ddp fp16", hook="fp16"),
    Variant("ddp powersgd", hook="powersgd"),
    Variant("allreduce", algorithm="gradient_allreduce.GradientAllReduceAlgorithm"),
    Variant("bytegrad", algorithm="bytegrad.ByteGradAlgorithm"),
    Variant("1-bit", algorithm="bytegrad.ByteGradAlgorithm", options={"codec": "one_bit"}),
    Variant("power_sgd", algorithm="power_sgd.PowerSGDAlgorithm"),
    Variant("decentralized", algorithm="decentralized.DecentralizedAlgorithm"),
    Variant("low precision", algorithm="decentralized.LowPrecisionDecentralizedAlgorithm"),
    Variant("local sgd 8", algorithm="local_sgd.LocalSGDAlgorithm", options={"interval": 8}),
    Variant("async", algorithm="async_model_average.AsyncModelAverageAlgorithm", options={"sync_interval_ms": 100}),
)


def wrap(variant: Variant, model: nn.Module, rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model under `variant`, and what steps it with learning rate `rate`."""
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
    if variant.algorithm:
        module, _, name = variant.algorithm.rpartition(".")
        algorithm = getattr(importlib.import_module(f"pelton.torch_api.algorithms.{module}"), name)
        return model.with_bagua([optimizer], algorithm(**variant.options)), optimizer  # type: ignore[operator]
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    register(variant.hook, parallel)
    return parallel, optimizer


def register(hook: str, parallel: DistributedDataParallel) -> None:
    """Sets DDP's communication hook."""
    if hook == "fp16":
        parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def make(variant: Variant, build: Callable[[], nn.Module], rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of its own for `variant`, the same on all ranks."""
    torch.manual_seed(0)
    return wrap(variant, build(), rate)
