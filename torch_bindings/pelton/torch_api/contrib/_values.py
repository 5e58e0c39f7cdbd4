"""Values as bytes, in a form that reading turns into nothing but values where they have one; else pickled."""

from __future__ import annotations

import json
import pickle
import struct
import sys
from typing import Any

import torch

from pelton._training import _encoding
from pelton.errors import InvalidArgument, PermissionDenied

_PLAIN, _PICKLED = b"P", b"K"
_ARRAY = "\0numpy"  # begins a tuple that stands for an array, or for a number of numpy's
_LEAVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype)
_LENGTH = struct.Struct("<Q")


class NotPlain(Exception):
    """A value has no safe form; the text names the type."""


def dumps(value: Any, allow_pickle: bool) -> bytes:
    """The bytes of a value.

    Args:
      value: tensors of the CPU, arrays, numbers, texts, bytes, and containers of them come back as they were; tensors
        and arrays as contiguous ones.
      allow_pickle: whether another value may be pickled.

    Raises:
      InvalidArgument: it would have to be; the text names the type.
    """
    tensors: list[torch.Tensor] = []
    try:
        form = json.dumps(_encoding.encode(_plain(value), tensors, "a value")).encode()
    except (NotPlain, ValueError, RecursionError) as error:
        if not allow_pickle:
            raise InvalidArgument(
                f"a value for the cache holds a {error}, which has no form but pickle's; whoever can write to the "
                "server could have anything run here by that. Return tensors, arrays, numbers, texts, bytes and "
                "containers of them, or give allow_pickle=True if the server is trusted"
            ) from None
        return _PICKLED + pickle.dumps(value)
    parts = [_PLAIN, _LENGTH.pack(len(form)), form]
    parts += [_bytes_of(tensor) for tensor in tensors]
    return b"".join(parts)


def loads(data: bytes, allow_pickle: bool) -> Any:
    """The value of bytes.

    Raises:
      PermissionDenied: it was pickled, which is not allowed here.
      InvalidArgument: they are malformed.
    """
    kind, content = data[:1], data[1:]
    if kind == _PICKLED:
        if not allow_pickle:
            raise PermissionDenied("a value in the cache is pickled, and allow_pickle=True was not given")
        return pickle.loads(content)
    try:
        (length,) = _LENGTH.unpack_from(content)
        form = json.loads(content[_LENGTH.size : _LENGTH.size + length])
    except (struct.error, ValueError) as error:
        raise InvalidArgument(f"a value in the cache is malformed: {error}") from None
    tensors: list[torch.Tensor] = []
    value = _encoding.decode(form, None, tensors)
    _fill(tensors, bytearray(content[_LENGTH.size + length :]))
    return _restored(value)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() > 0 else b""


def _fill(tensors: list[torch.Tensor], content: bytearray) -> None:
    if sum(tensor.nbytes for tensor in tensors) != len(content):
        raise InvalidArgument("a value in the cache is malformed: it is shorter or longer than it says")
    begin = 0
    for tensor in tensors:
        if tensor.nbytes > 0:
            source = torch.frombuffer(content, dtype=torch.uint8, count=tensor.nbytes, offset=begin)
            tensor.reshape(-1).view(torch.uint8).copy_(source)
        begin += tensor.nbytes


def _plain(value: Any) -> Any:
    """The value with arrays as tensors; types must be exactly those that come back."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind is torch.Tensor:
        if value.device.type != "cpu" or value.layout != torch.strided or value.requires_grad or value.is_quantized:
            raise NotPlain(f"{value.layout} tensor on {value.device} (requires_grad={value.requires_grad})")
        return value.resolve_conj().resolve_neg()
    if _is_numpys(value):
        return (_ARRAY, kind.__name__ == "ndarray", _tensor_of(value))
    if kind in (set, frozenset):
        return kind(_plain_key(part) for part in value)
    if kind in (list, tuple):
        if kind is tuple and value and type(value[0]) is str and value[0] == _ARRAY:
            raise NotPlain("tuple that begins like an encoded array")
        return kind(_plain(part) for part in value)
    if kind is dict:
        return {_plain_key(key): _plain(part) for key, part in value.items()}
    raise NotPlain(kind.__name__)


def _plain_key(key: Any) -> Any:
    kind = type(key)
    if kind in (tuple, frozenset):
        return kind(_plain_key(part) for part in key)
    if kind not in _LEAVES:
        raise NotPlain(f"{kind.__name__} as a key, or in a set")
    return key


def _is_numpys(value: Any) -> bool:
    """Whether it is an array or a number of numpy's; without that none is there."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and (type(value) is numpy.ndarray or isinstance(value, numpy.generic))


def _tensor_of(value: Any) -> torch.Tensor:
    numpy: Any = sys.modules["numpy"]
    try:
        return torch.from_numpy(numpy.array(value, order="C"))
    except (TypeError, ValueError):  # of texts, objects, records or another order of bytes
        raise NotPlain(f"numpy array of {value.dtype}") from None


def _restored(value: Any) -> Any:
    kind = type(value)
    if kind is tuple and len(value) == 3 and type(value[0]) is str and value[0] == _ARRAY:
        array = value[2].numpy()
        return array if value[1] else array[()]
    if kind in (list, tuple):
        return kind(_restored(part) for part in value)
    if kind is dict:
        return {key: _restored(part) for key, part in value.items()}
    return value
