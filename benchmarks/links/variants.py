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


@dataclass(frozen=True)
class Variant:
    """A way to train. Threads: a value. Owns: its options."""

    name: str
    hook: str = ""  # of DDP; "none": no DDP either, every rank for itself
    algorithm: str = ""  # "module.Class" below pelton.torch_api.algorithms; "": DDP
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: str = ""  # instead of SGD: class in the same module, or torch's for DDP
    optimizer_options: dict[str, Any] = field(default_factory=dict)
    peer: str = "ddp"  # the variant whose time is compared with this one's


_ADAM_RATE = {"lr": 1e-3}
_ASYNC = "async_model_average.AsyncModelAverageAlgorithm"

VARIANTS = (
    Variant("none", hook="none"),
    Variant("ddp"),
    Variant("ddp fp16", hook="fp16"),
    Variant("ddp powersgd", hook="powersgd"),
    Variant("allreduce", algorithm="gradient_allreduce.GradientAllReduceAlgorithm"),
    Variant("bytegrad", algorithm="bytegrad.ByteGradAlgorithm"),
    Variant("1-bit", algorithm="bytegrad.ByteGradAlgorithm", options={"codec": "one_bit"}),
    Variant("power_sgd", algorithm="power_sgd.PowerSGDAlgorithm", options={"rank": 1, "start_round": 1}),
    Variant("decentralized", algorithm="decentralized.DecentralizedAlgorithm"),
    Variant("low precision", algorithm="decentralized.LowPrecisionDecentralizedAlgorithm"),
    Variant("local sgd 8", algorithm="local_sgd.LocalSGDAlgorithm", options={"interval": 8}),
    Variant("local sgd 32", algorithm="local_sgd.LocalSGDAlgorithm", options={"interval": 32}),
    Variant("diloco 8", algorithm="diloco.DiLoCoAlgorithm", options={"interval": 8, "outer_momentum": 0.5}),
    Variant(
        "diloco 32, streamed",
        algorithm="diloco.DiLoCoAlgorithm",
        options={"interval": 32, "outer_momentum": 0.5, "fragments": 4, "delay": 4},
    ),
    Variant("async 100 ms", algorithm=_ASYNC, options={"sync_interval_ms": 100}),
    Variant("async", algorithm=_ASYNC),  # every 500 ms, Bagua's default
    Variant("ddp adam", optimizer="Adam", optimizer_options=_ADAM_RATE, peer="ddp adam"),
    Variant(
        "qadam",
        algorithm="q_adam.QAdamAlgorithm",
        optimizer="QAdamOptimizer",
        optimizer_options={**_ADAM_RATE, "warmup_steps": 32, "eps": 1e-4, "variance_floor": 0.0},
        peer="ddp adam",
    ),
    Variant(
        "1-bit adam",
        algorithm="one_bit_adam.OneBitAdamAlgorithm",
        optimizer="OneBitAdamOptimizer",
        optimizer_options={**_ADAM_RATE, "warmup_steps": 32, "eps": 1e-4, "variance_floor": 0.0},
        peer="ddp adam",
    ),
)


def wrap(variant: Variant, model: nn.Module, rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model under `variant`, and what steps it with learning rate `rate`."""
    module, _, name = variant.algorithm.rpartition(".")
    source = importlib.import_module(f"pelton.torch_api.algorithms.{module}") if module else torch.optim
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    if variant.optimizer:
        optimizer = getattr(source, variant.optimizer)(model.parameters(), **variant.optimizer_options)
    if variant.algorithm:
        belongs_to = [optimizer] if variant.optimizer else []
        algorithm = getattr(source, name)(*belongs_to, **variant.options)
        return model.with_bagua([optimizer], algorithm), optimizer  # type: ignore[operator]
    if variant.hook == "none":
        return model, optimizer
    # Over gloo, several buckets' PowerSGD hooks launch in an order that differs between ranks, and crash.
    one_bucket = {"bucket_cap_mb": 1000} if variant.hook == "powersgd" else {}
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True, **one_bucket)
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
