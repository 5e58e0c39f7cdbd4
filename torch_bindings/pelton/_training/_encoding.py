"""A safe text form for values: JSON with tags, in which tensors are numbers of a list.

Nothing that is decoded can do more than build plain values, containers of them, and empty tensors.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any

import torch

from pelton._training._devices import gpu, is_gpu
from pelton.errors import InvalidArgument, PeltonError

_DTYPES = {
    str(dtype): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
}
_MOST_ELEMENTS = 1 << 40
# Says of a tensor that it belongs on the receiver's current GPU.
_ON_GPU = "gpu"


def encode(value: Any, tensors: list[torch.Tensor], where: str) -> Any:
    """The JSON form of a value. Floats keep every bit; subclasses become what they derive from.

    Args:
      value: what to encode.
      tensors: every tensor found in it is appended.
      where: what it is, for errors.

    Raises:
      InvalidArgument: it holds something that has no safe form; the text says where and of which type.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, tensors, where)
    if isinstance(value, (list, tuple)):
        parts = _encode_each(value, tensors, where)
        return parts if isinstance(value, list) else {"tuple": parts}
    if isinstance(value, dict):
        pairs = [
            [encode(key, tensors, f"a key of {where}"), encode(part, tensors, f"{where}[{key!r}]")]
            for key, part in value.items()
        ]
        return {"dict": pairs}
    return _encode_rarer(value, tensors, where)


def _encode_each(values: Iterable[Any], tensors: list[torch.Tensor], where: str) -> list[Any]:
    return [encode(part, tensors, f"{where}[{i}]") for i, part in enumerate(values)]


def _encode_rarer(value: Any, tensors: list[torch.Tensor], where: str) -> Any:
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, (set, frozenset)):
        return {"set" if isinstance(value, set) else "frozenset": _encode_each(value, tensors, where)}
    if isinstance(value, torch.dtype) and str(value) in _DTYPES:
        return {"dtype": str(value)}
    raise InvalidArgument(f"{where} is a {type(value).__name__}, which cannot be broadcast safely")


def _encode_tensor(tensor: torch.Tensor, tensors: list[torch.Tensor], where: str) -> Any:
    on_gpu = is_gpu(tensor.device)
    if tensor.layout != torch.strided or not (on_gpu or tensor.device.type == "cpu"):
        raise InvalidArgument(f"{where} is a {tensor.layout} tensor on {tensor.device}; it cannot be broadcast")
    if str(tensor.dtype) not in _DTYPES:
        raise InvalidArgument(f"{where} is a tensor of {tensor.dtype}; it cannot be broadcast")
    tensors.append(tensor)
    return {"tensor": [str(tensor.dtype), list(tensor.shape), *([_ON_GPU] if on_gpu else [])]}


def decode(form: Any, existing: Any, tensors: list[torch.Tensor]) -> Any:
    """The value of a JSON form.

    Args:
      form: what `encode` made on another rank.
      existing: this rank's value at the same place; its tensors are kept where dtype and shape fit.
      tensors: every tensor of the value is appended; its content is to be filled in.

    Raises:
      InvalidArgument: the form is malformed.
    """
    if form is None or isinstance(form, (bool, int, str)):
        return form
    if isinstance(form, list):
        return [decode(part, _at(existing, i), tensors) for i, part in enumerate(form)]
    if not isinstance(form, dict) or len(form) != 1:
        raise InvalidArgument("a received value is malformed")
    ((tag, content),) = form.items()
    try:
        return _decode_tagged(tag, content, existing, tensors)
    except PeltonError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, RuntimeError) as error:
        raise InvalidArgument(f"a received value is malformed: {tag!r} of {error!r}") from None


def _decode_tagged(tag: str, content: Any, existing: Any, tensors: list[torch.Tensor]) -> Any:
    if tag == "float":
        return float.fromhex(content)
    if tag == "tuple":
        return tuple(decode(part, _at(existing, i), tensors) for i, part in enumerate(content))
    if tag == "dict":
        pairs = [(decode(key, None, tensors), part) for key, part in content]
        return {key: decode(part, _at(existing, key), tensors) for key, part in pairs}
    if tag == "tensor":
        return _decode_tensor(content, existing, tensors)
    if tag == "complex":
        return complex(float.fromhex(content[0]), float.fromhex(content[1]))
    if tag == "bytes":
        return base64.b64decode(content, validate=True)
    if tag in ("set", "frozenset"):
        parts = [decode(part, None, tensors) for part in content]
        return set(parts) if tag == "set" else frozenset(parts)
    if tag == "dtype":
        return _DTYPES[content]
    raise InvalidArgument(f"a received value has the unknown tag {tag!r}")


def _decode_tensor(content: Any, existing: Any, tensors: list[torch.Tensor]) -> torch.Tensor:
    dtype, shape = _DTYPES.get(content[0]), [int(size) for size in content[1]]
    on_gpu = content[2:] == [_ON_GPU]
    if dtype is None or min(shape, default=0) < 0 or math.prod(shape) > _MOST_ELEMENTS:
        raise InvalidArgument(f"a received tensor is malformed: {content[0]} {shape}")
    fits = isinstance(existing, torch.Tensor) and existing.dtype == dtype and list(existing.shape) == shape
    if fits and is_gpu(existing.device) == on_gpu:
        tensor: torch.Tensor = existing
    else:
        tensor = torch.empty(shape, dtype=dtype, device=gpu() if on_gpu else "cpu")
    tensors.append(tensor)
    return tensor


def _at(container: Any, key: Any) -> Any:
    if isinstance(container, dict):
        return container.get(key)
    if isinstance(container, (list, tuple)) and isinstance(key, int) and key < len(container):
        return container[key]
    return None
