"""The operations that are timed: each on Pelton and, with the same tensors, on torch.distributed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pelton.torch_api.communication as pelton
import torch
import torch.distributed as dist

Call = Callable[[], object]
Make = Callable[[int], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Operation:
    """One collective, ready to be called again and again. Threads: one. Owns: its tensors, by closure."""

    name: str
    pelton: Call
    torch: Call


def _chunks(tensor: torch.Tensor) -> list[torch.Tensor]:
    return list(tensor.chunk(dist.get_world_size()))


def _shift(tensor: torch.Tensor, landing: torch.Tensor) -> tuple[Call, Call]:
    """To the next rank around the ring, even ranks sending first, so that no call waits for itself."""
    rank, size = dist.get_rank(), dist.get_world_size()
    following, previous = (rank + 1) % size, (rank - 1) % size

    def turn(send: Callable[[torch.Tensor, int], object], recv: Callable[[torch.Tensor, int], object]) -> Call:
        if rank % 2 == 0:
            return lambda: (send(tensor, following), recv(landing, previous))
        return lambda: (recv(landing, previous), send(tensor, following))

    return turn(pelton.send, pelton.recv), turn(dist.send, dist.recv)


def operations(bytes_per_rank: int, make: Make) -> list[Operation]:
    """All of them.

    Args:
      bytes_per_rank: of the whole tensor that a rank puts in or gets out, whichever is larger.
      make: gives float32 tensors of a number of elements.

    Shape: whole [world_size * part], part [bytes_per_rank / 4 / world_size].
    """
    size, rank = dist.get_world_size(), dist.get_rank()
    count = max(bytes_per_rank // 4 // size, 1)
    whole, other, part = make(size * count).zero_(), make(size * count).zero_(), make(count).zero_()
    pieces = _chunks(whole)
    even = [count] * size
    places = [count * number for number in range(size)]
    at_root = rank == 0
    pelton_shift, torch_shift = _shift(whole, other)
    return [
        Operation("allreduce", lambda: pelton.allreduce_inplace(whole), lambda: dist.all_reduce(whole)),
        Operation("reduce", lambda: pelton.reduce_inplace(whole, 0), lambda: dist.reduce(whole, 0)),
        Operation("broadcast", lambda: pelton.broadcast(whole, 0), lambda: dist.broadcast(whole, 0)),
        Operation("allgather", lambda: pelton.allgather(part, whole), lambda: dist.all_gather_into_tensor(whole, part)),
        Operation(
            "reduce_scatter",
            lambda: pelton.reduce_scatter(whole, part),
            lambda: dist.reduce_scatter_tensor(part, whole),
        ),
        Operation(
            "gather",
            lambda: pelton.gather(part, whole, 0),
            lambda: dist.gather(part, pieces if at_root else None, 0),
        ),
        Operation(
            "scatter",
            lambda: pelton.scatter(whole, part, 0),
            lambda: dist.scatter(part, pieces if at_root else None, 0),
        ),
        Operation("alltoall", lambda: pelton.alltoall(whole, other), lambda: dist.all_to_all_single(other, whole)),
        Operation(
            "alltoall_v",
            lambda: pelton.alltoall_v(whole, even, places, other, even, places),
            lambda: dist.all_to_all_single(other, whole, even, even),
        ),
        Operation("send/recv", pelton_shift, torch_shift),
        Operation("barrier", lambda: pelton.barrier(), lambda: dist.barrier()),
    ]
