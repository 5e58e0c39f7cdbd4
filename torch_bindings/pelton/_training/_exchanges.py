"""Operations in which ranks get different things: gather, scatter, the all-to-alls, send and receive.

What holds for the collectives (`_collectives`) holds for these.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pelton._training import _arguments as checked
from pelton._training._arguments import chunk_of, readable, writable
from pelton._training._groups import AnyCommunicator, member
from pelton.errors import InvalidArgument


def gather(send_tensor: torch.Tensor, recv_tensor: torch.Tensor | None, dst: int, comm: AnyCommunicator = None) -> None:
    """Gives rank `dst` of the group the tensors of all ranks, one after the other; elsewhere recv_tensor is unused.

    Shape: send_tensor [count], recv_tensor [world_size, count], in elements.

    Raises:
      InvalidArgument: an argument is wrong, or differs between ranks.
      DeadlineExceeded, PeerLost, Aborted: the operation could not be completed; the text names the ranks.
    """
    communicator = member(comm)
    if communicator is None:
        return
    checked.check_peer("dst", dst, communicator)
    source = readable(send_tensor, "send_tensor")
    if communicator.rank() != dst:
        communicator.gather(source, source, dst)
        return
    everyones = checked.required(recv_tensor, "recv_tensor")
    checked.check_elements("gather", send_tensor, everyones, communicator.nranks(), 1)
    with writable(everyones, "recv_tensor") as target:
        communicator.gather(checked.apart(source, target), target, dst)


def gather_inplace(tensor: torch.Tensor, count: int, dst: int, comm: AnyCommunicator = None) -> None:
    """The same; rank `dst` contributes its own chunk of the tensor.

    Shape: [world_size, count] on rank `dst`, [count] elsewhere, in elements.

    Raises:
      PeltonError: as `gather`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    checked.check_peer("dst", dst, communicator)
    is_root = communicator.rank() == dst
    checked.check_count("gather_inplace", count, tensor, communicator.nranks() if is_root else 1)
    if not is_root:
        source = readable(tensor, "tensor")
        communicator.gather(source, source, dst)
        return
    with writable(tensor, "tensor", keep=True) as flat:
        communicator.gather(chunk_of(flat, dst, count).clone(), flat, dst)


def scatter(
    send_tensor: torch.Tensor | None, recv_tensor: torch.Tensor, src: int, comm: AnyCommunicator = None
) -> None:
    """Gives each rank the chunk of rank `src`'s send_tensor that has its number; elsewhere send_tensor is unused.

    Shape: send_tensor [world_size, count], recv_tensor [count], in elements.

    Raises:
      PeltonError: as `gather`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    checked.check_peer("src", src, communicator)
    if communicator.rank() != src:
        with writable(recv_tensor, "recv_tensor") as target:
            communicator.scatter(target, target, src)
        return
    all_chunks = checked.required(send_tensor, "send_tensor")
    checked.check_elements("scatter", all_chunks, recv_tensor, 1, communicator.nranks())
    with writable(recv_tensor, "recv_tensor") as target:
        communicator.scatter(checked.apart(readable(all_chunks, "send_tensor"), target), target, src)


def scatter_inplace(tensor: torch.Tensor, count: int, src: int, comm: AnyCommunicator = None) -> None:
    """The same; rank `src`'s own chunk stays where it is, and its tensor as it is.

    Shape: [world_size, count] on rank `src`, [count] elsewhere, in elements.

    Raises:
      PeltonError: as `gather`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    checked.check_peer("src", src, communicator)
    is_root = communicator.rank() == src
    checked.check_count("scatter_inplace", count, tensor, communicator.nranks() if is_root else 1)
    if is_root:
        unused = torch.empty(count, dtype=tensor.dtype, device=tensor.device)
        communicator.scatter(readable(tensor, "tensor"), unused, src)
        return
    with writable(tensor, "tensor") as flat:
        communicator.scatter(flat, flat, src)


def alltoall(send_tensor: torch.Tensor, recv_tensor: torch.Tensor, comm: AnyCommunicator = None) -> None:
    """Gives each rank the chunk with its number of every rank's send_tensor, in the order of the ranks.

    Shape: both [world_size, count], in elements.

    Raises:
      PeltonError: as `gather`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    checked.check_elements("alltoall", send_tensor, recv_tensor, 1, 1)
    checked.check_divides("alltoall", send_tensor, communicator.nranks(), "send_tensor")
    with writable(recv_tensor, "recv_tensor") as target:
        communicator.alltoall(checked.apart(readable(send_tensor, "send_tensor"), target), target)


def alltoall_inplace(tensor: torch.Tensor, comm: AnyCommunicator = None) -> None:
    """The same, with the result in the tensor itself. A copy of the tensor is made meanwhile.

    Shape: [world_size, count], in elements.

    Raises:
      PeltonError: as `gather`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    checked.check_divides("alltoall_inplace", tensor, communicator.nranks())
    with writable(tensor, "tensor") as flat:
        communicator.alltoall(checked.apart(readable(tensor, "tensor"), flat), flat)


def alltoall_v(
    send_tensor: torch.Tensor,
    send_counts: Sequence[int],
    send_displs: Sequence[int],
    recv_tensor: torch.Tensor,
    recv_counts: Sequence[int],
    recv_displs: Sequence[int],
    comm: AnyCommunicator = None,
) -> None:
    """Sends a part of send_tensor of any size to each rank, and receives one from each.

    Tensors of a GPU go by way of the host.

    Args:
      send_tensor: what is sent, seen as flat.
      send_counts: how many elements go to each rank; that rank's recv_counts must say the same.
      send_displs: at which element each part begins.
      recv_tensor: takes what comes, seen as flat; elements between the parts stay as they are.
      recv_counts: how many elements come from each rank.
      recv_displs: at which element each part is to begin; the parts must not overlap.
      comm: the group's communicator; None for all ranks.

    Shape: the lists have world_size entries.

    Raises:
      PeltonError: as `gather`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    size, rank = communicator.nranks(), communicator.rank()
    sent, received = (
        (
            checked.integers(f"{side}_counts", counts, size),
            checked.integers(f"{side}_displs", displs, size, are_offsets=True),
        )
        for side, counts, displs in (("send", send_counts, send_displs), ("recv", recv_counts, recv_displs))
    )
    checked.check_parts("send", send_tensor, *sent)
    checked.check_parts("recv", recv_tensor, *received)
    if sent[0][rank] != received[0][rank]:
        raise InvalidArgument(
            f"send_counts[{rank}]={sent[0][rank]} is what this rank sends to itself, but recv_counts[{rank}]="
            f"{received[0][rank]}"
        )
    # NCCL's messages have no sizes that the receiver could check: those of a GPU go by the host.
    on_host = recv_tensor if recv_tensor.device.type == "cpu" else recv_tensor.detach().cpu()
    with writable(on_host, "recv_tensor", keep=True) as target:
        source = checked.apart(readable(send_tensor, "send_tensor").cpu(), target)
        communicator.alltoall_v(source, *sent, target, *received)
    if on_host is not recv_tensor:
        recv_tensor.detach().copy_(on_host)


def alltoall_v_inplace(
    tensor: torch.Tensor, counts: Sequence[int], displs: Sequence[int], comm: AnyCommunicator = None
) -> None:
    """The same where as much comes from each rank as goes to it. A copy of the tensor is made meanwhile.

    Shape: as `alltoall_v`.

    Raises:
      PeltonError: as `gather`.
    """
    alltoall_v(tensor, counts, displs, tensor, counts, displs, comm)


def send(tensor: torch.Tensor, dst: int, comm: AnyCommunicator = None) -> None:
    """Sends a tensor to rank `dst` of the group. Returns when that has received it.

    Raises:
      PeltonError: as `gather`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    checked.check_other("dst", dst, communicator)
    communicator.send(readable(tensor, "tensor"), dst, 0)


def recv(tensor: torch.Tensor, src: int, comm: AnyCommunicator = None) -> None:
    """Receives what rank `src` of the group sends, in the order of its sending.

    Shape: as that of the sent tensor, in elements.

    Raises:
      PeltonError: as `gather`.
    """
    communicator = member(comm)
    if communicator is None:
        return
    checked.check_other("src", src, communicator)
    with writable(tensor, "tensor") as flat:
        communicator.recv(flat, src, 0)
