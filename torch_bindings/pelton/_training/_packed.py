"""Many tensors in few operations: they travel packed into flat buffers of some 32 MiB, large ones by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from pelton import _C
from pelton._training._arguments import AnyReduceOp, ReduceOp, check_peer, each_tensor, readable, reduce_code, writable
from pelton._training._groups import AnyCommunicator, member

_CHUNK_BYTES = 32 << 20
_ALIGNMENT_BYTES = 64


def broadcast_coalesced(tensors: Sequence[torch.Tensor], src: int = 0, comm: AnyCommunicator = None) -> None:
    """Gives every rank the tensors of rank `src` of the group.

    Shape: each the same on all ranks, in elements; dtypes may differ from tensor to tensor.

    Raises:
      InvalidArgument: an argument is wrong, or the bytes differ between ranks.
      DeadlineExceeded, PeerLost, Aborted: the operation could not be completed; the text names the ranks.
    """
    communicator = member(comm)
    if communicator is None:
        return
    check_peer("src", src, communicator)
    broadcast_packed(communicator, each_tensor(tensors, "tensors"), src)


def allreduce_coalesced_inplace(
    tensors: Sequence[torch.Tensor], op: AnyReduceOp = ReduceOp.SUM, comm: AnyCommunicator = None
) -> None:
    """Combines each of the tensors with the other ranks' at the same place of the list, in place.

    Shape: each the same on all ranks, in elements; dtypes may differ from tensor to tensor.

    Raises:
      PeltonError: as `broadcast_coalesced`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    code = reduce_code(op)
    listed = each_tensor(tensors, "tensors")
    dtypes = list(dict.fromkeys(tensor.dtype for tensor in listed))
    for dtype in dtypes:
        _C.Communicator.check_reducible(dtype, code)
    for dtype in dtypes:
        same = [tensor for tensor in listed if tensor.dtype == dtype]
        _run_packed(same, lambda flat: communicator.allreduce(flat, flat, code), reads=True, writes=True)


def broadcast_packed(communicator: _C.Communicator, tensors: Sequence[torch.Tensor], src: int) -> None:
    """Gives all ranks the tensors of rank `src`; their sizes and dtypes are known to be the same on all ranks."""
    is_root = communicator.rank() == src
    _run_packed(
        tensors, lambda flat: communicator.broadcast(flat.view(torch.uint8), src), reads=is_root, writes=not is_root
    )


def _run_packed(
    tensors: Sequence[torch.Tensor], run: Callable[[torch.Tensor], None], reads: bool, writes: bool
) -> None:
    """Calls `run` with flat memory of all tensors in turn.

    Args:
      tensors: may have different dtypes if `run` does not look at it.
      run: reads or changes its argument.
      reads: the memory holds the tensors' elements before.
      writes: the tensors get the memory's elements after.
    """
    for chunk, size in _chunks(tensors):
        if len(chunk) == 1:
            ((_, tensor),) = chunk
            if writes:
                with writable(tensor, "tensors", keep=reads) as flat:
                    run(flat.view(-1))
            else:
                run(readable(tensor, "tensors").view(-1))
            continue
        device = chunk[0][1].device
        shared = device.type == "cpu"
        flat = _C.empty([size], torch.uint8) if shared else torch.empty(size, dtype=torch.uint8, device=device)
        views = [flat[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape) for at, tensor in chunk]
        if reads:
            for view, (_, tensor) in zip(views, chunk):
                view.copy_(tensor.detach())
        run(flat.view(chunk[0][1].dtype))
        if writes:
            for view, (_, tensor) in zip(views, chunk):
                tensor.detach().copy_(view)


def _chunks(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[list[tuple[int, torch.Tensor]], int]]:
    """The tensors with their places in flat buffers of about _CHUNK_BYTES on one device, and each buffer's size."""
    chunk: list[tuple[int, torch.Tensor]] = []
    size = 0
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        moves_on = bool(chunk) and tensor.device != chunk[0][1].device
        if moves_on or (chunk and size + tensor.nbytes > _CHUNK_BYTES):
            yield chunk, size
            chunk, size = [], 0
        chunk.append((size, tensor))
        size = -(-(size + tensor.nbytes) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    if chunk:
        yield chunk, size
