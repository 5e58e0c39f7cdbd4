"""`pelton.check`: what of a wrapped model's training is this rank's own, and whether the ranks hold the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pelton._front import wrapping_of


@dataclass(frozen=True)
class Report:
    """What was found. Threads: a value. Owns: its texts."""

    model: str
    algorithm: str
    findings: list[str]  # what is local, or differs; empty: nothing

    def __bool__(self) -> bool:
        """Whether there is something to look at."""
        return bool(self.findings)

    def __str__(self) -> str:
        head = f"{self.model} under {self.algorithm}: "
        if not self.findings:
            return head + "nothing of it is local, and the ranks hold the same"
        return "\n  - ".join([head + f"{len(self.findings)} to look at", *self.findings])


def check(
    model: nn.Module,
    optimizers: Iterable[torch.optim.Optimizer] | torch.optim.Optimizer = (),
    step: Callable[[], Any] | None = None,
) -> Report:
    """Says what of a wrapped model is each rank's own affair. Collective over the model's group.

    It runs nothing of the caller's but `step`, if that is given: one step of the training, after which the ranks'
    weights are compared where the algorithm keeps them equal.

    Args:
      model: wrapped with `with_bagua` or `DistributedDataParallel`.
      optimizers: all that step it, whether they were given at wrapping or not.
      step: one step: forward, backward, and the optimizers' steps.

    Returns:
      A report; print it.

    Raises:
      InvalidArgument: the model is not wrapped.
    """
    inner = wrapping_of(model)
    given = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    findings = [*_of_mode(inner.module), *_of_buffers(model, inner), *_of_parameters(inner)]
    findings += _of_optimizers(inner, given)
    if step is not None:
        step()
    findings += _of_values(inner, was_stepped=step is not None)
    algorithm = type(inner.bagua_algorithm).__name__.removesuffix("Impl")
    return Report(inner.bagua_module_name, algorithm, findings)


def _of_mode(module: nn.Module) -> list[str]:
    modes = {layer.training for layer in module.modules()}
    if modes == {True}:
        return []
    if not module.training:
        return ["the model is in evaluation mode: training goes on as ever, but dropout and BatchNorm do not"]
    names = [name for name, layer in module.named_modules() if not layer.training]
    return [f"in evaluation mode: {_some(names)}"]


def _of_buffers(model: nn.Module, inner: Any) -> list[str]:
    if getattr(model, "broadcast_buffers", False):
        return []
    norms = [
        name
        for name, layer in inner.module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats
    ]
    findings = []
    if norms:
        findings.append(
            f"running statistics of {_some(norms)} are each rank's own after wrapping: evaluation and checkpoints "
            "depend on the rank. DistributedDataParallel takes rank 0's before each forward pass; SyncBatchNorm takes "
            "them of all ranks' batches"
        )
    covered = tuple(f"{name}." if name else "" for name in norms)
    others = [name for name, _ in inner.module.named_buffers() if not (covered and name.startswith(covered))]
    if others:
        findings.append(f"buffers that are each rank's own after wrapping: {_some(others)}")
    return findings


def _of_parameters(inner: Any) -> list[str]:
    findings = []
    if inner.parameters_to_ignore:
        findings.append(f"left out of all communication: {_some(inner.parameters_to_ignore)}")
    takes_part = {id(tensor) for _, tensor in inner._selected.trainable}
    frozen = [name for name, p in inner.module.named_parameters() if not p.requires_grad and id(p) not in takes_part]
    if frozen:
        findings.append(f"frozen, so that nothing is communicated for it: {_some(frozen)}")
    return findings


def _of_optimizers(inner: Any, optimizers: Sequence[torch.optim.Optimizer]) -> list[str]:
    from pelton._training._parameters import names_without_optimizer  # as below
    from pelton._training.data_parallel._strangers import described, idle, strangers

    findings = []
    known = {id(optimizer) for optimizer in inner.bagua_optimizers}
    unknown = [type(optimizer).__name__ for optimizer in optimizers if id(optimizer) not in known]
    if unknown:
        findings.append(f"with_bagua was not told of {_some(unknown)}: its state was not made rank 0's")
    without = [type(optimizer).__name__ for optimizer in idle(inner.bagua_optimizers, inner.module)]
    if without:
        findings.append(f"given at wrapping, but steps none of its parameters: {_some(without)}")
    everyone = [*inner.bagua_optimizers, *optimizers]
    others = strangers(everyone)
    if others:
        findings.append(f"stepped, but of no wrapped model, so that Pelton averages nothing of it: {described(others)}")
    trained = [(name, parameter) for name, parameter in inner.module.named_parameters() if parameter.requires_grad]
    alone = names_without_optimizer(trained, everyone)
    if alone:
        findings.append(f"no optimizer that is known steps {_some(alone)}")
    return findings


def _of_values(inner: Any, was_stepped: bool) -> list[str]:
    from pelton._training.data_parallel._equality import first_difference  # which imports what imports this

    communicator = inner.process_group.get_global_communicator()
    left_out = set(inner.parameters_to_ignore)
    when = "after the step" if was_stepped else "now"
    findings = []
    kinds = {"weights": inner.module.named_parameters(), "buffers": inner.module.named_buffers()}
    for kind, named in kinds.items():
        found = first_difference(communicator, [(name, tensor) for name, tensor in named if name not in left_out])
        if found is not None:
            kept = kind == "weights" and inner.weights_are_equal
            findings.append(
                f"{kind} differ between the ranks {when}, '{found.name}' first, {found.count} in all"
                + (", although the algorithm keeps them equal" if kept else ", as the algorithm lets them")
            )
    return findings


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
