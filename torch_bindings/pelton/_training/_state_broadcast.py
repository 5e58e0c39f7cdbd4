"""Brings all ranks of a group to rank 0's state: parameters, buffers, optimizers; in few broadcasts.

Rank 0 sends a description first; each rank compares it with its own, and the ranks agree on whether to go on, so
that a difference is an error that names it on all of them and never a tensor read as another.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pelton import _C
from pelton._training._encoding import decode, encode
from pelton._training._objects import text_of_rank0
from pelton._training._packed import broadcast_packed
from pelton._training._parameters import NamedTensors
from pelton.errors import InvalidArgument, PeltonError

_COMPLAINT_BYTES = 512


def agree(communicator: _C.Communicator, complaint: Exception | None) -> None:
    """Goes on only if no rank has a complaint. Collective.

    Args:
      communicator: the group's.
      complaint: what went wrong here, of whatever kind.

    Raises:
      Exception: this rank's complaint.
      InvalidArgument: another rank's; the text begins with its number.
    """
    text = b"" if complaint is None else _text_of(complaint)
    everyones = of_all_ranks(communicator, list(text.ljust(_COMPLAINT_BYTES, b"\0")), torch.uint8)
    if complaint is not None:
        raise complaint
    for rank, row in enumerate(everyones):
        if row[0]:
            said = bytes(row.tolist()).rstrip(b"\0").decode(errors="replace")
            raise InvalidArgument(f"rank {rank} of the group: {said}")


@contextlib.contextmanager
def agreeing(communicator: _C.Communicator, kind: type[Exception] = Exception) -> Iterator[None]:
    """Goes on after a block only if it has raised nothing on any rank. Collective, at the block's end.

    Args:
      communicator: the group's.
      kind: of an error that the other ranks are told of; another one is known to all of them, and raised at once.

    Raises:
      Exception: what the block has raised here.
      InvalidArgument: it has raised something on another rank; the text begins with its number.
    """
    complaint: Exception | None = None
    try:
        yield
    except kind as error:  # whatever it is, the other ranks must not wait for this one
        complaint = error
    agree(communicator, complaint)


def _text_of(complaint: Exception) -> bytes:
    """As many whole characters as fit, of an exception of another's with its kind."""
    text = str(complaint) if isinstance(complaint, PeltonError) else f"{type(complaint).__name__}: {complaint}"
    return text.encode()[:_COMPLAINT_BYTES].decode(errors="ignore").encode() or b"?"


def agree_on(communicator: _C.Communicator, what: str, mine: Any) -> None:
    """Goes on only if all ranks hold the same. Collective.

    Args:
      communicator: the group's.
      what: its name in errors.
      mine: plain values.

    Raises:
      InvalidArgument: a rank's differs from rank 0's.
    """
    text = json.dumps(mine).encode()
    theirs = text_of_rank0(communicator, text)
    differs = InvalidArgument(f"{what}: differs from rank 0's") if theirs != text else None
    agree(communicator, differs)


def everyone(communicator: _C.Communicator, flag: bool) -> bool:
    """Whether all ranks say yes. Collective."""
    return bool(of_all_ranks(communicator, [flag], torch.uint8).all())


def of_all_ranks(
    communicator: _C.Communicator, mine: Sequence[float] | torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Each rank's numbers, as many on all of them. Collective. Shape: `[world_size, len(mine)]`, on the CPU."""
    everyones = torch.zeros(communicator.nranks(), len(mine), dtype=dtype, device="cpu")
    communicator.allgather(torch.as_tensor(mine, dtype=dtype, device="cpu"), everyones)
    return everyones


def broadcast_state(
    communicator: _C.Communicator,
    named: NamedTensors,
    optimizers: Sequence[torch.optim.Optimizer],
    left_out: frozenset[int],
    model_name: str,
) -> str:
    """Gives all ranks the values of rank 0. Collective.

    Args:
      communicator: the group's.
      named: the model's tensors; names, shapes and dtypes must be those of rank 0.
      optimizers: their state and hyper-parameters become those of rank 0, also where a rank has none yet.
      left_out: ids of parameters whose optimizer state stays each rank's own.
      model_name: this rank's name for the model.

    Returns:
      Rank 0's name for the model: names that each process counts by itself may differ.

    Raises:
      InvalidArgument: something differs from rank 0, or has no safe encoding; the same on all ranks.
    """
    state_tensors: list[torch.Tensor] = []
    mine: dict[str, Any] = {"name": model_name, "tensors": _describe(named)}
    with agreeing(communicator):
        mine["optimizers"] = [_encode_optimizer(optimizer, left_out, state_tensors) for optimizer in optimizers]
    theirs = _broadcast_description(communicator, mine)
    agree(communicator, _difference(mine, theirs))
    if communicator.rank() != 0:
        state_tensors = []
        for optimizer, form in zip(optimizers, theirs["optimizers"]):
            _decode_optimizer(optimizer, form, left_out, state_tensors)
    broadcast_packed(communicator, [tensor for _, tensor in named] + state_tensors, 0)
    return str(theirs["name"])


def _describe(named: NamedTensors) -> list[list[Any]]:
    return [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in named]


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _encode_optimizer(
    optimizer: torch.optim.Optimizer, left_out: frozenset[int], tensors: list[torch.Tensor]
) -> dict[str, Any]:
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgument("optimizers: LBFGS keeps state that cannot be broadcast; use another optimizer")
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        # Names are of the parameters, which are compared on their own.
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        groups.append([len(group["params"]), encode(options, tensors, f"{kind}.param_groups[{number}]")])
    states = []
    for number, parameter in enumerate(_parameters_of(optimizer)):
        if id(parameter) not in left_out and optimizer.state.get(parameter):
            form = encode(optimizer.state[parameter], tensors, f"{kind}.state[{number}]")
            states.append([number, form])
    return {"kind": kind, "groups": groups, "states": states}


def _decode_optimizer(
    optimizer: torch.optim.Optimizer,
    form: dict[str, Any],
    left_out: frozenset[int],
    tensors: list[torch.Tensor],
) -> None:
    for group, (_, options) in zip(optimizer.param_groups, form["groups"]):
        group.update(decode(options, group, tensors))
    states = {int(number): state for number, state in form["states"]}
    for number, parameter in enumerate(_parameters_of(optimizer)):
        if id(parameter) in left_out:
            continue
        if number in states:
            optimizer.state[parameter] = decode(states[number], optimizer.state.get(parameter), tensors)
        else:
            optimizer.state.pop(parameter, None)


def _broadcast_description(communicator: _C.Communicator, mine: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(mine).encode() if communicator.rank() == 0 else b""
    description: dict[str, Any] = json.loads(text_of_rank0(communicator, text))
    return description


def _difference(mine: dict[str, Any], theirs: dict[str, Any]) -> InvalidArgument | None:
    """What first differs between this rank's model and optimizers and rank 0's."""
    for ours, rank0 in zip(mine["tensors"], theirs["tensors"]):
        if ours != rank0:
            return InvalidArgument(f"the model differs: tensor {_show(ours)} here is {_show(rank0)} on rank 0")
    here, there = len(mine["tensors"]), len(theirs["tensors"])
    if here != there:
        longer = mine["tensors"] if here > there else theirs["tensors"]
        extra = longer[min(here, there)][0]
        return InvalidArgument(f"the model differs: {here} tensors here, {there} on rank 0; '{extra}' is one too many")
    shapes = [
        [(form["kind"], [count for count, _ in form["groups"]]) for form in side["optimizers"]]
        for side in (mine, theirs)
    ]
    if shapes[0] != shapes[1]:
        return InvalidArgument(
            f"the optimizers differ (kind, parameters per group): {shapes[0]} here, {shapes[1]} on rank 0"
        )
    return None


def _show(described: list[Any]) -> str:
    name, dtype, shape = described
    return f"'{name}' ({dtype} {shape})"
