"""The process group and its collectives on CPU tensors.

Every collective blocks until it is done or the group's timeout is over, without holding the GIL. Tensors may be
non-contiguous: they are packed before and unpacked after. Errors name the operation, the argument and its value.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Union

import torch
import torch.distributed as dist

from pelton import _C
from pelton.errors import InvalidArgument
from pelton.torch_api import _session
from pelton.torch_api._session import destroy_process_group, init_process_group, is_initialized

__all__ = [
    "BaguaProcessGroup",
    "ReduceOp",
    "allgather",
    "allgather_inplace",
    "allreduce",
    "allreduce_inplace",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "init_process_group",
    "is_initialized",
    "recv",
    "reduce",
    "reduce_inplace",
    "reduce_scatter",
    "reduce_scatter_inplace",
    "send",
]


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


class BaguaProcessGroup:
    """An ordered set of ranks that communicate with each other.

    Threads: the main thread. Owns: nothing; its communicator belongs to the process's session.
    """

    def __init__(self, ranks: Sequence[int], stream: object, group_name: str) -> None:
        """Args:
        ranks: numbers of its members in the job, ascending.
        stream: None on the CPU.
        group_name: the same on all members.
        """
        self.ranks = list(ranks)
        self.stream = stream
        self.group_name = group_name

    def get_global_communicator(self) -> _C.Communicator:
        """The communicator of all members. Collective when it is called first."""
        return _session.current().communicator(self.ranks)


def _get_default_group() -> BaguaProcessGroup:
    """The group of all ranks of the job.

    Raises:
      RuntimeError: the process group is not initialised.
    """
    return BaguaProcessGroup(range(_session.current().backend.world_size), None, "default")


def allreduce(
    send_tensor: torch.Tensor,
    recv_tensor: torch.Tensor,
    op: AnyReduceOp = ReduceOp.SUM,
    comm: _C.Communicator | None = None,
) -> None:
    """Combines the ranks' tensors; every rank gets the result, bitwise the same on all of them.

    Args:
      send_tensor: this rank's contribution.
      recv_tensor: takes the result.
      op: how to combine; torch.distributed's are understood too.
      comm: the group's communicator; None for all ranks.

    Shape: both tensors have the same number of elements, on all ranks.

    Raises:
      InvalidArgument: an argument is wrong, or differs between ranks.
      DeadlineExceeded, PeerLost, Aborted: the operation could not be completed; the text names the ranks.
    """
    code = _reduce_code(op)
    _check_elements("allreduce", send_tensor, recv_tensor, 1, 1)
    with _written(recv_tensor, "recv_tensor") as target:
        _communicator(comm).allreduce(_read(send_tensor, "send_tensor"), target, code)


def allreduce_inplace(
    tensor: torch.Tensor, op: AnyReduceOp = ReduceOp.SUM, comm: _C.Communicator | None = None
) -> None:
    """The same, with the result in the tensor itself.

    Raises:
      As `allreduce`.
    """
    code = _reduce_code(op)
    with _written(tensor, "tensor", keep=True) as flat:
        _communicator(comm).allreduce(flat, flat, code)


def reduce(
    send_tensor: torch.Tensor,
    recv_tensor: torch.Tensor,
    dst: int,
    op: AnyReduceOp = ReduceOp.SUM,
    comm: _C.Communicator | None = None,
) -> None:
    """Combines the ranks' tensors; rank `dst` of the group gets the result, elsewhere `recv_tensor` is untouched.

    Shape: as `allreduce`.

    Raises:
      As `allreduce`.
    """
    code = _reduce_code(op)
    communicator = _communicator(comm)
    _check_peer("dst", dst, communicator)
    source = _read(send_tensor, "send_tensor")
    if communicator.rank() != dst:
        communicator.reduce(source, source, dst, code)
        return
    _check_elements("reduce", send_tensor, recv_tensor, 1, 1)
    with _written(recv_tensor, "recv_tensor") as target:
        communicator.reduce(source, target, dst, code)


def reduce_inplace(
    tensor: torch.Tensor, dst: int, op: AnyReduceOp = ReduceOp.SUM, comm: _C.Communicator | None = None
) -> None:
    """The same, with the result in rank `dst`'s tensor itself.

    Raises:
      As `allreduce`.
    """
    reduce(tensor, tensor, dst, op, comm)


def broadcast(tensor: torch.Tensor, src: int = 0, comm: _C.Communicator | None = None) -> None:
    """Gives every rank the tensor of rank `src` of the group.

    Shape: the same number of elements on all ranks.

    Raises:
      As `allreduce`.
    """
    communicator = _communicator(comm)
    _check_peer("src", src, communicator)
    with _written(tensor, "tensor", keep=True) as flat:
        communicator.broadcast(flat, src)


def allgather(send_tensor: torch.Tensor, recv_tensor: torch.Tensor, comm: _C.Communicator | None = None) -> None:
    """Gives every rank the tensors of all ranks, one after the other.

    Shape: send_tensor [count], recv_tensor [world_size, count], in elements.

    Raises:
      As `allreduce`.
    """
    communicator = _communicator(comm)
    _check_elements("allgather", send_tensor, recv_tensor, communicator.nranks(), 1)
    with _written(recv_tensor, "recv_tensor") as target:
        communicator.allgather(_read(send_tensor, "send_tensor"), target)


def allgather_inplace(tensor: torch.Tensor, comm: _C.Communicator | None = None) -> None:
    """The same; this rank's contribution is its own chunk of the tensor.

    Shape: [world_size, count], in elements.

    Raises:
      As `allreduce`.
    """
    communicator = _communicator(comm)
    with _written(tensor, "tensor", keep=True) as flat:
        communicator.allgather(_own_chunk("allgather_inplace", flat, communicator), flat)


def reduce_scatter(
    send_tensor: torch.Tensor,
    recv_tensor: torch.Tensor,
    op: AnyReduceOp = ReduceOp.SUM,
    comm: _C.Communicator | None = None,
) -> None:
    """Combines the ranks' tensors; each rank gets the chunk of the result that has its number.

    Shape: send_tensor [world_size, count], recv_tensor [count], in elements.

    Raises:
      As `allreduce`.
    """
    code = _reduce_code(op)
    communicator = _communicator(comm)
    _check_elements("reduce_scatter", send_tensor, recv_tensor, 1, communicator.nranks())
    with _written(recv_tensor, "recv_tensor") as target:
        communicator.reduce_scatter(_read(send_tensor, "send_tensor"), target, code)


def reduce_scatter_inplace(
    tensor: torch.Tensor, op: AnyReduceOp = ReduceOp.SUM, comm: _C.Communicator | None = None
) -> None:
    """The same, with the result in this rank's own chunk of the tensor; the other chunks are undefined after.

    Shape: [world_size, count], in elements.

    Raises:
      As `allreduce`.
    """
    code = _reduce_code(op)
    communicator = _communicator(comm)
    with _written(tensor, "tensor", keep=True) as flat:
        communicator.reduce_scatter(flat, _own_chunk("reduce_scatter_inplace", flat, communicator), code)


def send(tensor: torch.Tensor, dst: int, comm: _C.Communicator | None = None) -> None:
    """Sends a tensor to rank `dst` of the group, which must receive it.

    Raises:
      As `allreduce`.
    """
    communicator = _communicator(comm)
    _check_peer("dst", dst, communicator)
    communicator.send(_read(tensor, "tensor"), dst, 0)


def recv(tensor: torch.Tensor, src: int, comm: _C.Communicator | None = None) -> None:
    """Receives what rank `src` of the group sends, in the order of its sending.

    Shape: as that of the sent tensor, in elements.

    Raises:
      As `allreduce`.
    """
    communicator = _communicator(comm)
    _check_peer("src", src, communicator)
    with _written(tensor, "tensor") as flat:
        communicator.recv(flat, src, 0)


def barrier(comm: _C.Communicator | None = None) -> None:
    """Returns when every rank of the group has called it.

    Raises:
      As `allreduce`.
    """
    _communicator(comm).barrier()


def _communicator(comm: _C.Communicator | None) -> _C.Communicator:
    if comm is None:
        return _get_default_group().get_global_communicator()
    if not isinstance(comm, _C.Communicator):
        raise InvalidArgument(f"comm={comm!r}: must be a communicator of a group, or None")
    return comm


def _reduce_code(op: AnyReduceOp) -> int:
    if isinstance(op, int) and not isinstance(op, bool) and op in ReduceOp.__members__.values():
        return int(op)
    name = getattr(getattr(op, "op", op), "name", None)
    is_torchs = isinstance(op, (dist.ReduceOp, dist.ReduceOp.RedOpType))
    if is_torchs and isinstance(name, str) and name in ReduceOp.__members__:
        return int(ReduceOp[name])
    raise InvalidArgument(f"op={op!r}: must be one of {', '.join(ReduceOp.__members__)}")


def _check_peer(argument: str, peer: int, communicator: _C.Communicator) -> None:
    size = communicator.nranks()
    if not isinstance(peer, int) or not 0 <= peer < size:
        raise InvalidArgument(f"{argument}={peer!r}: must be a rank of the group, 0 to {size - 1}")


def _check_elements(
    operation: str, sent: torch.Tensor, received: torch.Tensor, send_factor: int, recv_factor: int
) -> None:
    _check_tensor(sent, "send_tensor")
    _check_tensor(received, "recv_tensor")
    if sent.dtype != received.dtype:
        raise InvalidArgument(
            f"{operation}: send_tensor has dtype {sent.dtype}, recv_tensor {received.dtype}; they must be the same"
        )
    if sent.numel() * send_factor != received.numel() * recv_factor:
        raise InvalidArgument(
            f"{operation}: send_tensor has {sent.numel()} elements, recv_tensor {received.numel()}; "
            f"{send_factor} times the first must be {recv_factor} times the second"
        )


def _check_tensor(tensor: torch.Tensor, argument: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"{argument}: must be a tensor, is a {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"{argument}: has layout {tensor.layout}; call to_dense() first")
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"{argument}: is on device {tensor.device}; only CPU tensors can be communicated yet")


def _read(tensor: torch.Tensor, argument: str) -> torch.Tensor:
    _check_tensor(tensor, argument)
    return tensor.detach().contiguous()


@contextmanager
def _written(tensor: torch.Tensor, argument: str, keep: bool = False) -> Iterator[torch.Tensor]:
    """Yields contiguous memory whose content is the tensor's afterwards; with `keep`, before too."""
    _check_tensor(tensor, argument)
    own = tensor.detach()
    if own.is_contiguous():
        yield own
        return
    packed = own.contiguous() if keep else torch.empty(own.shape, dtype=own.dtype)
    yield packed
    own.copy_(packed)


def _own_chunk(operation: str, flat: torch.Tensor, communicator: _C.Communicator) -> torch.Tensor:
    size, count = communicator.nranks(), flat.numel()
    if count % size:
        raise InvalidArgument(f"{operation}: tensor has {count} elements, which {size} ranks do not divide")
    return flat.view(-1).narrow(0, communicator.rank() * (count // size), count // size)
