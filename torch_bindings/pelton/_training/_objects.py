"""Broadcast of a Python value in a safe form: nothing that is received can do more than build plain values."""

from __future__ import annotations

import json
from typing import Any

import torch

from pelton import _C
from pelton._training._arguments import check_peer
from pelton._training._encoding import decode, encode
from pelton._training._groups import AnyCommunicator, member
from pelton._training._packed import broadcast_packed
from pelton.errors import InvalidArgument, PeltonError

_LONGEST_TEXT_BYTES = 256 << 20
_LONGEST_COMPLAINT_BYTES = 1024
_IS_VALUE, _IS_COMPLAINT = 1, 2


def broadcast_object(obj: Any, src: int = 0, comm: AnyCommunicator = None) -> Any:
    """Gives every rank the value that rank `src` of the group passes.

    What can be sent: None, bool, int, float, complex, str, bytes, dtypes, dense CPU tensors, and tuples, lists, sets,
    frozensets and dicts of these, to any depth that Python's recursion limit allows. A subclass arrives as the class
    it derives from (a named tuple as a tuple, a parameter as a tensor). Nothing else can: functions, modules and
    objects of other classes would need code to be run where they arrive.

    Args:
      obj: the value; looked at on rank `src` alone.
      src: whose value.
      comm: the group's communicator; None for all ranks.

    Returns:
      The value; on rank `src` and on ranks outside of the group `obj` itself.

    Raises:
      InvalidArgument: the value, or something in it, cannot be sent; on all ranks, naming it.
      DeadlineExceeded, PeerLost, Aborted: the operation could not be completed; the text names the ranks.
    """
    communicator = member(comm)
    if communicator is None:
        return obj
    check_peer("src", src, communicator)
    if communicator.rank() == src:
        _send(communicator, obj, src)
        return obj
    return _receive(communicator, src)


def _send(communicator: _C.Communicator, obj: Any, src: int) -> None:
    tensors: list[torch.Tensor] = []
    complaint: PeltonError | None = None
    text = b""
    try:
        text = json.dumps(encode(obj, tensors, "obj")).encode("utf-8", "surrogatepass")
        if len(text) > _LONGEST_TEXT_BYTES:
            raise InvalidArgument(f"obj takes {len(text)} bytes, at most {_LONGEST_TEXT_BYTES} can be broadcast")
    except PeltonError as error:
        complaint = error
    except RecursionError:
        complaint = InvalidArgument("obj contains itself, or is nested too deeply")
    except Exception as error:  # whatever it is, the other ranks must not wait for this one
        complaint = InvalidArgument(f"obj cannot be sent: {type(error).__name__}: {error}")
    if complaint is None:
        broadcast_text(communicator, text, src, _IS_VALUE)
        broadcast_packed(communicator, tensors, src)
        return
    shortened = str(complaint).encode("utf-8", "replace")[:_LONGEST_COMPLAINT_BYTES]
    broadcast_text(communicator, shortened, src, _IS_COMPLAINT)
    raise complaint


def _receive(communicator: _C.Communicator, src: int) -> Any:
    kind, text = broadcast_text(communicator, b"", src)
    if kind == _IS_COMPLAINT:
        raise InvalidArgument(f"rank {src} of the group: {text.decode(errors='replace')}")
    tensors: list[torch.Tensor] = []
    value = decode(json.loads(text.decode("utf-8", "surrogatepass")), None, tensors)
    broadcast_packed(communicator, tensors, src)
    return value


def text_of_rank0(communicator: _C.Communicator, text: bytes) -> bytes:
    """Gives all ranks rank 0's text. Raises: as broadcast_text."""
    return broadcast_text(communicator, text if communicator.rank() == 0 else b"", 0)[1]


def broadcast_text(communicator: _C.Communicator, text: bytes, src: int, kind: int = 0) -> tuple[int, bytes]:
    """Gives all ranks the text and its kind of rank `src`.

    Raises:
      InvalidArgument: its length is impossible.
    """
    header = torch.tensor([kind, len(text)], device="cpu")
    communicator.broadcast(header, src)
    kind, size = (int(number) for number in header)
    if not 0 < size <= _LONGEST_TEXT_BYTES:
        raise InvalidArgument(f"rank {src} of the group announced a text of {size} bytes")
    buffer = bytearray(text or size)
    communicator.broadcast(torch.frombuffer(buffer, dtype=torch.uint8), src)
    return kind, bytes(buffer)
