"""The methods that Bagua's communicators have and the runtime's have not: in place, and on Bagua's backend tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Union

import torch

from pelton import _C
from pelton._training import _collectives, _exchanges
from pelton._training._arguments import AnyReduceOp
from pelton._training.tensor import BackendTensor, effective_tensor
from pelton.errors import InvalidArgument

RawTensor = Union[torch.Tensor, BackendTensor]
_OF_TENSORS = (
    *("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "scatter"),
    *("alltoall", "alltoall_v", "send", "recv"),
)


def _tensor_of(value: RawTensor) -> torch.Tensor:
    """The tensor itself, or what `bagua_backend_tensor()` stands for.

    Raises:
      InvalidArgument: that has none now.
    """
    if not isinstance(value, BackendTensor):
        return value
    effective = effective_tensor(value.proxy)
    if effective is None:
        raise InvalidArgument(f"tensor '{value.name}' has nothing to communicate yet; call bagua_ensure_grad() first")
    return effective


class _InPlace:
    """The methods that every communicator gets; never instantiated."""

    def allreduce_inplace(self: Any, tensor: RawTensor, op: AnyReduceOp) -> None:
        """As `pelton.torch_api.allreduce_inplace`."""
        _collectives.allreduce_inplace(_tensor_of(tensor), op, self)

    def reduce_inplace(self: Any, tensor: RawTensor, dst: int, op: AnyReduceOp) -> None:
        """As `pelton.torch_api.reduce_inplace`."""
        _collectives.reduce_inplace(_tensor_of(tensor), dst, op, self)

    def reduce_scatter_inplace(self: Any, tensor: RawTensor, op: AnyReduceOp) -> None:
        """As `pelton.torch_api.reduce_scatter_inplace`."""
        _collectives.reduce_scatter_inplace(_tensor_of(tensor), op, self)

    def allgather_inplace(self: Any, tensor: RawTensor) -> None:
        """As `pelton.torch_api.allgather_inplace`."""
        _collectives.allgather_inplace(_tensor_of(tensor), self)

    def gather_inplace(self: Any, tensor: RawTensor, count: int, dst: int) -> None:
        """As `pelton.torch_api.gather_inplace`."""
        _exchanges.gather_inplace(_tensor_of(tensor), count, dst, self)

    def scatter_inplace(self: Any, tensor: RawTensor, count: int, src: int) -> None:
        """As `pelton.torch_api.scatter_inplace`."""
        _exchanges.scatter_inplace(_tensor_of(tensor), count, src, self)

    def alltoall_inplace(self: Any, tensor: RawTensor) -> None:
        """As `pelton.torch_api.alltoall_inplace`."""
        _exchanges.alltoall_inplace(_tensor_of(tensor), self)

    def alltoall_v_inplace(self: Any, tensor: RawTensor, counts: Sequence[int], displs: Sequence[int]) -> None:
        """As `pelton.torch_api.alltoall_v_inplace`."""
        _exchanges.alltoall_v_inplace(_tensor_of(tensor), counts, displs, self)


def _taking_backend_tensors(method: Callable[..., None]) -> Callable[..., None]:
    """A method that also takes what Bagua's scripts hand to it; tensors cost no look at them."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> None:
        try:
            method(self, *arguments, **named)
        except TypeError:
            if not any(isinstance(value, BackendTensor) for value in (*arguments, *named.values())):
                raise
            method(self, *map(_tensor_of, arguments), **{name: _tensor_of(value) for name, value in named.items()})

    return call


def install() -> None:
    """Puts the methods on the runtime's communicators. Idempotent."""
    if hasattr(_C.Communicator, "allreduce_inplace"):
        return
    for name in _OF_TENSORS:
        setattr(_C.Communicator, name, _taking_backend_tensors(getattr(_C.Communicator, name)))
    for name, method in vars(_InPlace).items():
        if not name.startswith("_"):
            setattr(_C.Communicator, name, method)
