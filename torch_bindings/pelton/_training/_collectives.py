"""The reductions and what else every rank of a group takes part in, each with its in-place form.

Every operation blocks until it is done or the group's timeout is over, without holding the GIL, and does nothing on a
rank outside of the group. Tensors may be non-contiguous: they are packed before and unpacked after; those that share
memory are told apart. Errors name the operation, the argument and its value.
"""

from __future__ import annotations

from typing import Any, overload

import torch

from pelton._training import _arguments as checked
from pelton._training._arguments import AnyReduceOp, ReduceOp, chunk_of, readable, reduce_code, writable
from pelton._training._groups import AnyCommunicator, member

_MISSING: Any = object()  # None may be a value


@overload
def allreduce(
    send_tensor: torch.Tensor, recv_tensor: torch.Tensor, op: AnyReduceOp = ..., comm: AnyCommunicator = ...
) -> None: ...
@overload
def allreduce(tensor: torch.Tensor, op: AnyReduceOp = ..., comm: AnyCommunicator = ...) -> None: ...
def allreduce(  # type: ignore[misc]  # two forms whose arguments at one place have different names
    send_tensor: Any = _MISSING,
    recv_tensor: Any = _MISSING,
    op: Any = ReduceOp.SUM,
    comm: Any = None,
    *,
    tensor: Any = _MISSING,
) -> None:
    """Combines the ranks' tensors; every rank gets the result, bitwise the same on all of them.

    The form of 2021, `allreduce(tensor, op, comm)`, is `allreduce_inplace`.

    Args:
      send_tensor: this rank's contribution.
      recv_tensor: takes the result.
      op: how to combine; torch.distributed's are understood too.
      comm: the group's communicator; None for all ranks.
      tensor: send_tensor's name in the form of 2021.

    Shape: both tensors have the same number of elements, on all ranks.

    Raises:
      InvalidArgument: an argument is wrong, or differs between ranks.
      DeadlineExceeded, PeerLost, Aborted: the operation could not be completed; the text names the ranks.
    """
    send_tensor = send_tensor if tensor is _MISSING else tensor
    if recv_tensor is _MISSING:
        allreduce_inplace(send_tensor, op, comm)
        return
    if checked.is_reduce_op(recv_tensor):
        allreduce_inplace(send_tensor, recv_tensor, comm if op is ReduceOp.SUM else op)
        return
    communicator = member(comm)
    if communicator is None:
        return
    code = reduce_code(op)
    checked.check_elements("allreduce", send_tensor, recv_tensor, 1, 1)
    with writable(recv_tensor, "recv_tensor") as target:
        source = checked.apart_unless_same(readable(send_tensor, "send_tensor"), target)
        communicator.allreduce(source, target, code)


def allreduce_inplace(tensor: torch.Tensor, op: AnyReduceOp = ReduceOp.SUM, comm: AnyCommunicator = None) -> None:
    """The same, with the result in the tensor itself.

    Raises:
      PeltonError: as `allreduce`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    code = reduce_code(op)
    with writable(tensor, "tensor", keep=True) as flat:
        communicator.allreduce(flat, flat, code)


@overload
def reduce(
    send_tensor: torch.Tensor,
    recv_tensor: torch.Tensor | None,
    dst: int,
    op: AnyReduceOp = ...,
    comm: AnyCommunicator = ...,
) -> None: ...
@overload
def reduce(tensor: torch.Tensor, dst: int, op: AnyReduceOp = ..., comm: AnyCommunicator = ...) -> None: ...
def reduce(  # type: ignore[misc]  # two forms whose arguments at one place have different names
    send_tensor: Any = _MISSING,
    recv_tensor: Any = _MISSING,
    dst: Any = _MISSING,
    op: Any = ReduceOp.SUM,
    comm: Any = None,
    *,
    tensor: Any = _MISSING,
) -> None:
    """Combines the ranks' tensors; rank `dst` of the group gets the result, elsewhere `recv_tensor` is unused.

    The form of 2021, `reduce(tensor, dst, op, comm)`, is `reduce_inplace`.

    Shape: as `allreduce`.

    Raises:
      PeltonError: as `allreduce`.
    """
    send_tensor = send_tensor if tensor is _MISSING else tensor
    if recv_tensor is _MISSING:
        reduce_inplace(send_tensor, dst, op, comm)
        return
    if isinstance(recv_tensor, int):
        given_op = op if dst is _MISSING else dst
        reduce_inplace(send_tensor, recv_tensor, given_op, comm if dst is _MISSING or op is ReduceOp.SUM else op)
        return
    communicator = member(comm)
    if communicator is None:
        return
    code = reduce_code(op)
    checked.check_peer("dst", dst, communicator)
    source = readable(send_tensor, "send_tensor")
    if communicator.rank() != dst:
        communicator.reduce(source, source, dst, code)
        return
    checked.check_elements("reduce", send_tensor, recv_tensor, 1, 1)
    with writable(recv_tensor, "recv_tensor") as target:
        communicator.reduce(checked.apart_unless_same(source, target), target, dst, code)


def reduce_inplace(
    tensor: torch.Tensor, dst: int, op: AnyReduceOp = ReduceOp.SUM, comm: AnyCommunicator = None
) -> None:
    """The same, with the result in rank `dst`'s tensor itself.

    Raises:
      PeltonError: as `allreduce`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    code = reduce_code(op)
    checked.check_peer("dst", dst, communicator)
    if communicator.rank() != dst:
        source = readable(tensor, "tensor")
        communicator.reduce(source, source, dst, code)
        return
    with writable(tensor, "tensor", keep=True) as flat:
        communicator.reduce(flat, flat, dst, code)


def broadcast(tensor: torch.Tensor, src: int = 0, comm: AnyCommunicator = None, *, root: int | None = None) -> None:
    """Gives every rank the tensor of rank `src` of the group.

    Args:
      tensor: what is sent on rank `src`, and what takes it elsewhere.
      src: whose tensor.
      comm: the group's communicator; None for all ranks.
      root: src's name in the form of 2021.

    Shape: the same number of elements on all ranks.

    Raises:
      PeltonError: as `allreduce`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    src = src if root is None else root
    checked.check_peer("src" if root is None else "root", src, communicator)
    if communicator.rank() == src:
        communicator.broadcast(readable(tensor, "tensor"), src)
        return
    with writable(tensor, "tensor") as flat:
        communicator.broadcast(flat, src)


def allgather(send_tensor: torch.Tensor, recv_tensor: torch.Tensor, comm: AnyCommunicator = None) -> None:
    """Gives every rank the tensors of all ranks, one after the other.

    Shape: send_tensor [count], recv_tensor [world_size, count], in elements.

    Raises:
      PeltonError: as `allreduce`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    checked.check_elements("allgather", send_tensor, recv_tensor, communicator.nranks(), 1)
    with writable(recv_tensor, "recv_tensor") as target:
        communicator.allgather(checked.apart(readable(send_tensor, "send_tensor"), target), target)


def allgather_inplace(tensor: torch.Tensor, comm: AnyCommunicator = None) -> None:
    """The same; this rank's contribution is its own chunk of the tensor.

    Shape: [world_size, count], in elements.

    Raises:
      PeltonError: as `allreduce`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    count = checked.check_divides("allgather_inplace", tensor, communicator.nranks())
    with writable(tensor, "tensor", keep=True) as flat:
        communicator.allgather(chunk_of(flat, communicator.rank(), count), flat)


def reduce_scatter(
    send_tensor: torch.Tensor,
    recv_tensor: torch.Tensor,
    op: AnyReduceOp = ReduceOp.SUM,
    comm: AnyCommunicator = None,
) -> None:
    """Combines the ranks' tensors; each rank gets the chunk of the result that has its number.

    Shape: send_tensor [world_size, count], recv_tensor [count], in elements.

    Raises:
      PeltonError: as `allreduce`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    code = reduce_code(op)
    checked.check_elements("reduce_scatter", send_tensor, recv_tensor, 1, communicator.nranks())
    with writable(recv_tensor, "recv_tensor") as target:
        source = checked.apart(readable(send_tensor, "send_tensor"), target)
        communicator.reduce_scatter(source, target, code)


def reduce_scatter_inplace(tensor: torch.Tensor, op: AnyReduceOp = ReduceOp.SUM, comm: AnyCommunicator = None) -> None:
    """The same, with the result in this rank's own chunk of the tensor; the other chunks are undefined after.

    Shape: [world_size, count], in elements.

    Raises:
      PeltonError: as `allreduce`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    code = reduce_code(op)
    count = checked.check_divides("reduce_scatter_inplace", tensor, communicator.nranks())
    with writable(tensor, "tensor", keep=True) as flat:
        communicator.reduce_scatter(flat, chunk_of(flat, communicator.rank(), count), code)


def barrier(comm: AnyCommunicator = None) -> None:
    """Returns when every rank of the group has called it.

    Raises:
      PeltonError: as `allreduce`.
    """
    communicator = member(comm)
    if communicator is not None:
        communicator.barrier()
