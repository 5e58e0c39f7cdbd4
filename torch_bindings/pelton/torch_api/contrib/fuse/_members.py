"""What a fused optimizer looks at of each parameter: its weights, its gradient, its states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pelton._training.algorithms._pieces import PIECE_ELEMENTS
from pelton.torch_api.contrib.fuse._shelf import Shelf, place_of

WEIGHTS, GRADIENTS = "weights", "gradients"


def state_kind(key: str) -> str:
    """The kind of a state's memory."""
    return f"state {key}"


@dataclass
class Member:
    """A parameter in one step. Threads: the trainer's. Owns: references."""

    parameter: torch.Tensor
    tensors: dict[str, torch.Tensor]  # by kind: what is of the parameter's size
    scalars: dict[str, Any]  # by key of the state: what is one number, or nothing
    shelf: Shelf | None = None
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)  # the scalars, to be compared

    def __post_init__(self) -> None:
        self.places = {kind: place_of(tensor) for kind, tensor in self.tensors.items()}

    def precedes(self, other: Member) -> bool:
        """Whether the two can be one: all kinds of memory go on alike, and they have the same numbers beside it."""
        if self.tensors.keys() != other.tensors.keys() or self.numbers != other.numbers:
            return False
        distances = set()
        for kind, (storage, offset) in self.places.items():
            other_storage, other_offset = other.places[kind]
            if storage != other_storage or self.tensors[kind].dtype != other.tensors[kind].dtype:
                return False
            distances.add(other_offset - offset)
        if len(distances) != 1:
            return False
        (distance,) = distances
        return distance == self.parameter.numel() or self._goes_on_shelf(other, distance)

    def _goes_on_shelf(self, other: Member, distance: int) -> bool:
        """Whether there is nothing between the two but a gap of the shelf's own."""
        shelf = self.shelf
        if shelf is None or shelf is not other.shelf:
            return False
        mine, its = (shelf.numbers[id(parameter)] for parameter in (self.parameter, other.parameter))
        is_next = its == mine + 1 and distance == shelf.offsets[its] - shelf.offsets[mine]
        is_next = is_next and distance - self.parameter.numel() < shelf.alignment  # else another's gradient is between
        return is_next and all(shelf.owns(kind, storage) for kind, (storage, _) in self.places.items())


def member_of(
    parameter: torch.Tensor, state: dict[Any, Any] | None, shelf: Shelf | None, is_in_bucket: bool = False
) -> Member | None:
    """What there is of a parameter; None where it must be stepped by itself.

    Args:
      parameter: one with a gradient.
      state: what the optimizer remembers of it; None before its first step.
      shelf: where it is kept, if anywhere.
      is_in_bucket: its gradient lies in a bucket, of which it must be a part that the shelf knows.
    """
    gradient = parameter.grad
    if is_in_bucket and (gradient is None or not is_like(gradient, parameter)):
        return None
    if is_in_bucket:
        gradient = shelf.gradient_of(parameter) if shelf is not None else None
    if gradient is None or not can_be_flat(parameter) or not is_like(gradient, parameter):
        return None
    tensors, scalars = {WEIGHTS: parameter, GRADIENTS: gradient}, {}
    for key, value in (state or {}).items():
        if not isinstance(key, str):
            return None
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            if not is_like(value, parameter, of_any_dtype=True):
                return None
            tensors[state_kind(key)] = value
        elif value is None or isinstance(value, (torch.Tensor, bool, int, float)):
            scalars[key] = value
        else:
            return None
    return Member(parameter, tensors, scalars, shelf)


def can_be_flat(parameter: torch.Tensor) -> bool:
    """Whether a parameter is a plain tensor whose elements lie one after the other."""
    return (
        type(parameter) in (torch.Tensor, nn.Parameter)
        and parameter.layout == torch.strided
        and parameter.is_floating_point()
        and parameter.dim() > 0
        and parameter.numel() > 0
        and parameter.is_contiguous()
    )


def is_position_blind(parameter: torch.Tensor, group: dict[str, Any]) -> bool:
    """Whether an element of a parameter is stepped alike wherever it lies.

    On a CPU, torch's loops round the last elements of a tensor of a 16-bit type otherwise than those before, which go
    through vector instructions; so do its fused optimizers with any type. As parts of a larger tensor they would become
    other numbers.
    """
    on_cpu = parameter.device.type == "cpu"
    rounds_alike = parameter.dtype in (torch.float32, torch.float64) and not group.get("fused")
    return can_be_flat(parameter) and (rounds_alike or not on_cpu)


def is_like(tensor: torch.Tensor, parameter: torch.Tensor, of_any_dtype: bool = False) -> bool:
    """Whether a tensor lies in its memory as the parameter does in its own."""
    return (
        tensor.layout == torch.strided
        and tensor.shape == parameter.shape
        and tensor.device == parameter.device
        and (of_any_dtype or tensor.dtype == parameter.dtype)
        and tensor.is_contiguous()
    )


def read_numbers(members: Sequence[Member]) -> None:
    """Makes the scalars comparable, those of a GPU in one copy."""
    on_gpu = []
    for member in members:
        for key, value in member.scalars.items():
            if not isinstance(value, torch.Tensor):
                member.numbers[key] = (type(value), value)
            elif value.device.type == "cpu":
                member.numbers[key] = (value.dtype, value.item())
            else:
                on_gpu.append((member, key, value))
    if on_gpu:
        found = torch.stack([value.double() for _, _, value in on_gpu]).tolist()
        for (member, key, value), number in zip(on_gpu, found):
            member.numbers[key] = (value.dtype, value.device, number)


def runs_of(members: Sequence[Member | None]) -> Iterator[list[Member]]:
    """Neighbours that can be one, two or more; and what is larger than a piece, as it is better cut."""
    run: list[Member] = []
    for member in [*members, None]:
        if member is not None and run and run[-1].precedes(member):
            run.append(member)
            continue
        if len(run) > 1 or (run and run[0].parameter.is_cpu and run[0].parameter.numel() > PIECE_ELEMENTS):
            yield run
        run = [] if member is None else [member]
