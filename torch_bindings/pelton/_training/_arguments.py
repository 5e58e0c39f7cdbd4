"""What the collectives ask of their arguments. Errors name the argument and its value; nothing was sent then."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Union

import torch
import torch.distributed as dist

from pelton import _C
from pelton._training._devices import check_device
from pelton.errors import InvalidArgument


class ReduceOp(enum.IntEnum):
    """How elements are combined. Numbers are Bagua's codes. Threads: a value. Owns: nothing."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BOR = 7
    BAND = 8
    BXOR = 9
    AVG = 10


AnyReduceOp = Union[ReduceOp, int, "dist.ReduceOp", "dist.ReduceOp.RedOpType"]


def is_reduce_op(op: object) -> bool:
    """Whether it is meant as one: ours, torch's, or a number."""
    return isinstance(op, (int, dist.ReduceOp, dist.ReduceOp.RedOpType)) and not isinstance(op, bool)


def reduce_code(op: AnyReduceOp) -> int:
    """The runtime's number of an operation of ours or torch's.

    Raises:
      InvalidArgument: it is none that the runtime knows.
    """
    if isinstance(op, int) and is_reduce_op(op) and op in ReduceOp.__members__.values():
        return int(op)
    name = getattr(getattr(op, "op", op), "name", None)
    if is_reduce_op(op) and isinstance(name, str) and name in ReduceOp.__members__:
        return int(ReduceOp[name])
    raise InvalidArgument(f"op={op!r}: must be one of {', '.join(ReduceOp.__members__)}")


def check_peer(argument: str, peer: int, communicator: _C.Communicator) -> None:
    """Checks a rank of the group.

    Raises:
      InvalidArgument: it is not an integer, or not a rank of the group.
    """
    size = communicator.nranks()
    if not isinstance(peer, int) or isinstance(peer, bool) or not 0 <= peer < size:
        raise InvalidArgument(f"{argument}={peer!r}: must be a rank of the group, 0 to {size - 1}")


def check_other(argument: str, peer: int, communicator: _C.Communicator) -> None:
    """Checks a rank of the group other than this one.

    Raises:
      InvalidArgument: it is not one.
    """
    check_peer(argument, peer, communicator)
    if peer == communicator.rank():
        raise InvalidArgument(f"{argument}={peer}: is this rank itself")


def check_tensor(tensor: torch.Tensor, argument: str) -> None:
    """Checks that a tensor's elements can be read.

    Raises:
      InvalidArgument: it is no tensor, sparse, or on neither the CPU nor a GPU.
    """
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"{argument}: must be a tensor, is a {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"{argument}: has layout {tensor.layout}; call to_dense() first")
    check_device(tensor.device, f"{argument}: is on device {tensor.device}")


def required(tensor: torch.Tensor | None, argument: str) -> torch.Tensor:
    """A tensor that other ranks need not give.

    Raises:
      InvalidArgument: it is None.
    """
    if tensor is None:
        raise InvalidArgument(f"{argument}: is None; this rank needs it")
    return tensor


def check_elements(
    operation: str, sent: torch.Tensor, received: torch.Tensor, send_factor: int, recv_factor: int
) -> None:
    """Checks a pair of tensors: equal dtypes, and counts that fit together.

    Args:
      operation: its name, for errors.
      sent: the argument send_tensor.
      received: the argument recv_tensor.
      send_factor: times the first count ...
      recv_factor: ... must be this times the second.

    Raises:
      InvalidArgument: they do not fit; the text says why.
    """
    check_tensor(sent, "send_tensor")
    check_tensor(received, "recv_tensor")
    if sent.dtype != received.dtype:
        raise InvalidArgument(
            f"{operation}: send_tensor has dtype {sent.dtype}, recv_tensor {received.dtype}; they must be the same"
        )
    if sent.numel() * send_factor != received.numel() * recv_factor:
        raise InvalidArgument(
            f"{operation}: send_tensor has {sent.numel()} elements, recv_tensor {received.numel()}; "
            f"{send_factor} times the first must be {recv_factor} times the second"
        )


def check_divides(operation: str, tensor: torch.Tensor, size: int, argument: str = "tensor") -> int:
    """The number of elements of one of `size` equal chunks.

    Raises:
      InvalidArgument: there is no such number, or it is no tensor.
    """
    check_tensor(tensor, argument)
    if tensor.numel() % size:
        count = tensor.numel()
        raise InvalidArgument(f"{operation}: {argument} has {count} elements, which {size} ranks do not divide")
    return tensor.numel() // size


def check_count(operation: str, count: int, tensor: torch.Tensor, chunks: int) -> None:
    """Checks that a tensor has `chunks` times `count` elements.

    Raises:
      InvalidArgument: it has not.
    """
    check_tensor(tensor, "tensor")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise InvalidArgument(f"{operation}: count={count!r}: must be a number of elements")
    if tensor.numel() != chunks * count:
        raise InvalidArgument(
            f"{operation}: tensor has {tensor.numel()} elements, must have {chunks} times count={count}"
        )


def integers(argument: str, values: Sequence[int], size: int, *, are_offsets: bool = False) -> list[int]:
    """A list of one count or offset per rank. Further offsets are left out, because they often end with the total.

    Raises:
      InvalidArgument: it has another length, or holds something that is not a number of elements.
    """
    try:
        numbers = [operator.index(value) for value in values]
    except TypeError:
        raise InvalidArgument(f"{argument}={values!r}: must be a list of integers") from None
    if len(numbers) < size or (len(numbers) > size and not are_offsets):
        raise InvalidArgument(f"{argument} has {len(numbers)} entries, must have one for each of the {size} ranks")
    for i, number in enumerate(numbers):
        if number < 0:
            raise InvalidArgument(f"{argument}[{i}]={number}: must not be negative")
    return numbers[:size]


def check_parts(side: str, tensor: torch.Tensor, counts: Sequence[int], displs: Sequence[int]) -> None:
    """Checks that every part lies inside of the tensor.

    Args:
      side: "send" or "recv".
      tensor: the argument of that side.
      counts: the parts' sizes.
      displs: where they begin.

    Raises:
      InvalidArgument: one does not; the text says which.
    """
    check_tensor(tensor, f"{side}_tensor")
    for i, (count, begin) in enumerate(zip(counts, displs)):
        if begin + count > tensor.numel():
            raise InvalidArgument(
                f"{side}_counts[{i}]={count} from {side}_displs[{i}]={begin} on: {side}_tensor has only "
                f"{tensor.numel()} elements"
            )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its memory holds its elements, one after the other: a lazy conjugate's does not."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def readable(tensor: torch.Tensor, argument: str) -> torch.Tensor:
    """Contiguous memory with the tensor's elements: its own, or a packed copy."""
    check_tensor(tensor, argument)
    own = tensor.detach()
    return own if _is_plain(own) else own.resolve_conj().resolve_neg().contiguous()


def apart(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """`source`, or a copy where it shares memory with `target`; both contiguous."""
    begin, end = source.data_ptr(), source.data_ptr() + source.nbytes
    overlaps = begin < target.data_ptr() + target.nbytes and target.data_ptr() < end
    return source.clone() if overlaps else source


def apart_unless_same(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The same, for operations that have an in-place form."""
    return source if source.data_ptr() == target.data_ptr() else apart(source, target)


@contextmanager
def writable(tensor: torch.Tensor, argument: str, keep: bool = False) -> Iterator[torch.Tensor]:
    """Yields contiguous memory whose content is the tensor's afterwards; with `keep`, before too.

    Raises:
      InvalidArgument: several of its elements lie in one place, or its elements cannot be read.
    """
    check_tensor(tensor, argument)
    own = tensor.detach()
    if _is_plain(own):
        yield own
        return
    if any(stride == 0 and size > 1 for size, stride in zip(own.shape, own.stride())):
        raise InvalidArgument(f"{argument}: is expanded, so that several of its elements are one; call clone() first")
    packed = readable(own, argument) if keep else torch.empty(own.shape, dtype=own.dtype, device=own.device)
    yield packed
    own.copy_(packed)


def chunk_of(flat: torch.Tensor, index: int, count: int) -> torch.Tensor:
    """Chunk `index` of contiguous memory, `count` elements long."""
    return flat.view(-1).narrow(0, index * count, count)


def each_tensor(tensors: Iterable[Any], argument: str) -> list[torch.Tensor]:
    """A list of tensors, checked one by one.

    Raises:
      InvalidArgument: it is no list, or one of them cannot be read; the text has its number.
    """
    if isinstance(tensors, (torch.Tensor, str)) or not hasattr(tensors, "__iter__"):
        raise InvalidArgument(f"{argument}: must be a list of tensors, is a {type(tensors).__name__}")
    listed: list[Any] = list(tensors)
    for i, tensor in enumerate(listed):
        check_tensor(tensor, f"{argument}[{i}]")
    return listed
