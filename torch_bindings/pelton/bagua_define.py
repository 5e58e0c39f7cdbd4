"""What Bagua's tuning service and its clients tell each other."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from pelton.errors import InvalidArgument

__all__ = [
    "BaguaCoreTelemetrySpan",
    "BaguaHyperparameter",
    "TensorDeclaration",
    "TensorDtype",
    "get_tensor_declaration_bytes",
]

_Json = dict[str, Any]


class TensorDtype(str, enum.Enum):
    """A tensor's element type. Bagua has the first three; the names are those of `to_bagua_datatype`."""

    F32 = "f32"
    F16 = "f16"
    U8 = "u8"
    I64 = "i64"
    BF16 = "bf16"
    F64 = "f64"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    BOOL = "bool"
    C64 = "c64"
    C128 = "c128"


_ELEMENT_BYTES = {
    TensorDtype.F32: 4,
    TensorDtype.F16: 2,
    TensorDtype.U8: 1,
    TensorDtype.I64: 8,
    TensorDtype.BF16: 2,
    TensorDtype.F64: 8,
    TensorDtype.I8: 1,
    TensorDtype.I16: 2,
    TensorDtype.I32: 4,
    TensorDtype.BOOL: 1,
    TensorDtype.C64: 8,
    TensorDtype.C128: 16,
}


class TensorDeclaration(TypedDict):
    """A tensor as the service knows it: a dict, which is also its form on the wire."""

    name: str
    num_elements: int
    dtype: TensorDtype


def get_tensor_declaration_bytes(td: TensorDeclaration) -> int:
    """The size of a tensor's elements. Units: bytes.

    Raises:
      InvalidArgument: its dtype is none of `TensorDtype`.
    """
    return td["num_elements"] * _ELEMENT_BYTES[_dtype_of(td)]


def checked_tensors(tensors: object, where: str) -> list[TensorDeclaration]:
    """Tensor declarations that came from outside, as new dicts with nothing else in them.

    Args:
      tensors: a list of declarations, if all is well.
      where: what it is, for the error.

    Raises:
      InvalidArgument: it is not; the text names the tensor and the field.
    """
    if not isinstance(tensors, (list, tuple)):
        raise InvalidArgument(f"{where}: must be a list of tensor declarations, not {type(tensors).__name__}")
    return [_checked_tensor(tensor, f"{where}[{i}]") for i, tensor in enumerate(tensors)]


@dataclasses.dataclass
class BaguaHyperparameter:
    """What is tuned. Threads: the caller's. Owns: its lists.

    Attributes:
      buckets: which tensors are communicated together.
      bucket_size: the size at which a bucket was closed. Units: bytes.
      is_hierarchical_reduce: whether ranks of one host reduce among themselves first.
    """

    buckets: list[list[TensorDeclaration]] = dataclasses.field(default_factory=list)
    bucket_size: int = 0
    is_hierarchical_reduce: bool = False

    def update(self, param_dict: Mapping[str, Any]) -> BaguaHyperparameter:
        """Takes over the attributes that `param_dict` has; its other keys are ignored, as in Bagua.

        Returns:
          Itself.

        Raises:
          InvalidArgument: a value is of the wrong type; nothing was changed. The text names it.
        """
        changes: _Json = {}
        if "buckets" in param_dict:
            changes["buckets"] = _checked_buckets(param_dict["buckets"])
        if "bucket_size" in param_dict:
            changes["bucket_size"] = _checked_count(param_dict["bucket_size"], "bucket_size")
        if "is_hierarchical_reduce" in param_dict:
            value = param_dict["is_hierarchical_reduce"]
            if not isinstance(value, bool):
                raise InvalidArgument(f"is_hierarchical_reduce={value!r}: must be a bool")
            changes["is_hierarchical_reduce"] = value
        for name, value in changes.items():
            setattr(self, name, value)
        return self

    def dict(self) -> _Json:
        """The attributes, copied, in the form that goes over the wire."""
        return {field.name: copy.deepcopy(getattr(self, field.name)) for field in dataclasses.fields(self)}


@dataclasses.dataclass
class BaguaCoreTelemetrySpan:
    """Something that happened to a tensor. Threads: the caller's. Owns: nothing.

    Attributes:
      trace_id: of the trace that it belongs to.
      action: what happened; "tensor_ready" is the one that the service reads.
      tensor_name: the tensor.
      start_time: when it began, on a clock of the reporter's.
      end_time: when it ended.
    """

    trace_id: int
    action: str
    tensor_name: str
    start_time: int
    end_time: int

    def dict(self) -> _Json:
        """The attributes, in the form that goes over the wire."""
        return dataclasses.asdict(self)


def _checked_buckets(buckets: object) -> list[list[TensorDeclaration]]:
    if not isinstance(buckets, (list, tuple)):
        raise InvalidArgument(f"buckets: must be a list of lists of tensors, not {type(buckets).__name__}")
    return [checked_tensors(bucket, f"buckets[{i}]") for i, bucket in enumerate(buckets)]


def _checked_tensor(tensor: object, where: str) -> TensorDeclaration:
    if not isinstance(tensor, Mapping):
        raise InvalidArgument(f"{where}: must be a tensor declaration, not {type(tensor).__name__}")
    missing = _missing(tensor, TensorDeclaration.__annotations__)
    if missing:
        raise InvalidArgument(f"{where}: lacks {', '.join(missing)}")
    if not isinstance(tensor["name"], str):
        raise InvalidArgument(f"{where}: name={tensor['name']!r}: must be a text")
    count = _checked_count(tensor["num_elements"], f"tensor '{tensor['name']}': num_elements")
    return {"name": tensor["name"], "num_elements": count, "dtype": _dtype_of(tensor)}


def _missing(tensor: Mapping[str, Any], wanted: Iterable[str]) -> list[str]:
    return [name for name in wanted if name not in tensor]


def _checked_count(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidArgument(f"{what}={value!r}: must be a number of 0 or more")
    return value


def _dtype_of(tensor: Mapping[str, Any]) -> TensorDtype:
    try:
        return TensorDtype(tensor["dtype"])
    except ValueError:
        known = ", ".join(dtype.value for dtype in TensorDtype)
        raise InvalidArgument(f"tensor '{tensor['name']}': dtype={tensor['dtype']!r}: must be one of {known}") from None
