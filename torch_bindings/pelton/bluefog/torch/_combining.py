"""Tensors in flat buckets, and what an optimizer does with them between ranks."""

from __future__ import annotations

import enum
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import torch

from pelton.bluefog.torch import mpi_ops

_BUCKET_BYTES = 8 << 20  # BlueFog's threshold of fusion
_numbers = itertools.count()

Named = list[tuple[str, torch.Tensor]]


class CommunicationType(enum.Enum):
    """What an optimizer combines weights with. It may change from step to step, on all ranks at once."""

    neighbor_allreduce = "neighbor.allreduce"
    hierarchical_neighbor_allreduce = "hierarchical.neighbor.allreduce"
    allreduce = "allreduce"
    empty = "empty"


@dataclass
class Knobs:
    """With whom and by which weights the next combination is; read when it begins. Threads: a value. Owns: nothing."""

    communication_type: CommunicationType = CommunicationType.neighbor_allreduce
    self_weight: Union[float, None] = None
    src_weights: Any = None
    dst_weights: Any = None
    src_machine_weights: Any = None
    dst_machine_weights: Any = None
    enable_topo_check: bool = False


@dataclass
class FlatBucket:
    """Parameters of one dtype, one behind the other. Threads: the trainer's. Owns: nothing."""

    name: str
    parameters: list[torch.Tensor]
    handle: Union[int, None] = field(default=None)
    flat: Union[torch.Tensor, None] = field(default=None)  # what is on its way; kept until the end

    def packed(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Copies of the tensors, flat."""
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """A flat tensor as tensors of the parameters' shapes."""
        pieces = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        return [piece.view(parameter.shape) for piece, parameter in zip(pieces, self.parameters)]

    def unpack(self, flat: torch.Tensor) -> None:
        """Gives the parameters the values of a flat tensor."""
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self.views(flat)):
                parameter.copy_(view)

    def begin(self, knobs: Knobs, *, checks: bool) -> None:
        """Begins to combine the parameters as they are now."""
        kind = knobs.communication_type
        if kind is CommunicationType.empty:
            return
        self.flat = self.packed(self.parameters)
        if kind is CommunicationType.allreduce:
            self.handle = mpi_ops.allreduce_nonblocking(self.flat, name=self.name)
        elif kind is CommunicationType.neighbor_allreduce:
            self.handle = mpi_ops.neighbor_allreduce_nonblocking(
                self.flat,
                self_weight=knobs.self_weight,
                src_weights=knobs.src_weights,
                dst_weights=knobs.dst_weights,
                enable_topo_check=checks and knobs.enable_topo_check,
                name=self.name,
            )
        else:
            self.handle = mpi_ops.hierarchical_neighbor_allreduce_nonblocking(
                self.flat,
                self_weight=knobs.self_weight,
                src_machine_weights=knobs.src_machine_weights,
                dst_machine_weights=knobs.dst_machine_weights,
                enable_topo_check=checks and knobs.enable_topo_check,
                name=self.name,
            )

    def finish(self) -> None:
        """Gives the parameters what was combined, if something was begun. Blocks: until it is there."""
        if self.handle is None:
            return
        handle, self.handle = self.handle, None
        combined = mpi_ops.synchronize(handle)
        self.flat = None
        self.unpack(combined)


def buckets_of(kind: str, named: Named) -> list[FlatBucket]:
    """Parameters by dtype, in their order, up to 8 MiB together; named alike on all ranks that make them alike."""
    number = next(_numbers)
    buckets: list[FlatBucket] = []
    of_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for _, parameter in named:
        of_dtype.setdefault(parameter.dtype, []).append(parameter)
    for parameters in of_dtype.values():
        rest = list(parameters)
        while rest:
            taken = _first(rest)
            buckets.append(FlatBucket(f"{kind}.{number}.bucket.{len(buckets)}", rest[:taken]))
            rest = rest[taken:]
    return buckets


def _first(parameters: Iterable[torch.Tensor]) -> int:
    size = count = 0
    for parameter in parameters:
        size += parameter.nbytes
        if count > 0 and size > _BUCKET_BYTES:
            break
        count += 1
    return count


def combine(buckets: Sequence[FlatBucket], knobs: Knobs) -> None:
    """Begins all of them; the first one's check of the topology is for all."""
    for i, bucket in enumerate(buckets):
        bucket.begin(knobs, checks=i == 0)


def mean_of_gradients(buckets: Sequence[FlatBucket]) -> None:
    """Gives all parameters the mean of the ranks' gradients, where one that has none counts as 0; those that have none
    on any rank stay without. Blocks: until they are there.
    """
    handles: list[tuple[FlatBucket, int, int]] = []
    for bucket in buckets:
        present = [parameter.grad is not None for parameter in bucket.parameters]
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in bucket.parameters]
        marks = torch.tensor(present, dtype=torch.float32)
        handles.append(
            (
                bucket,
                mpi_ops.allreduce_nonblocking(bucket.packed(gradients), name=f"{bucket.name}.gradients"),
                mpi_ops.allreduce_nonblocking(marks, average=False, name=f"{bucket.name}.marks"),
            )
        )
    for bucket, gradients_handle, marks_handle in handles:
        means = bucket.views(mpi_ops.synchronize(gradients_handle))
        marks = mpi_ops.synchronize(marks_handle)
        for parameter, mean, mark in zip(bucket.parameters, means, marks.tolist()):
            if mark == 0:
                continue
            if parameter.grad is None:
                parameter.grad = mean.clone()
            else:
                with torch.no_grad():
                    parameter.grad.copy_(mean)


class Rhythm:
    """Counts a model's forward passes in training mode, and says when the J-th has come.

    A step before which no forward pass was seen counts as one, so that a model that is called past its hooks is
    combined all the same. Threads: the trainer's. Owns: its hooks.
    """

    def __init__(self, models: Sequence[torch.nn.Module], interval: int, due: Callable[[], None]) -> None:
        """Args:
        models: whose forward passes count; those of the first one, if there are several.
        interval: J.
        due: is called when the J-th has begun.
        """
        self._interval, self._due = interval, due
        self._count = 0
        self._since_step = 0
        self._has_warned = False
        self.is_due = False
        if models:
            models[0].register_forward_pre_hook(lambda module, _: self._forward(module.training))

    def _forward(self, is_training: bool) -> None:
        if is_training and torch.is_grad_enabled():
            self._since_step += 1
            self._tick()

    def _tick(self) -> None:
        if self.is_due:
            if not self._has_warned:
                self._has_warned = True
                print_warning(
                    f"Unexpected behavior: a forward pass came after the {self._interval} of "
                    "num_steps_per_communication, and step() was not called; it takes part in no communication"
                )
            return
        self._count += 1
        if self._count == self._interval:
            self._count, self.is_due = 0, True
            self._due()

    def before_step(self) -> bool:
        """Whether this step combines."""
        if self._since_step == 0:
            self._tick()
        self._since_step = 0
        due, self.is_due = self.is_due, False
        return due


def print_warning(text: str) -> None:
    """Warns the caller of the training loop."""
    warnings.warn(text, stacklevel=5)
