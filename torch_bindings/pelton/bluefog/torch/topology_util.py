"""The other ends of edges of which every rank names one."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

import torch

from pelton._training._state_broadcast import agree
from pelton.bluefog._world import World
from pelton.bluefog.torch._basics import active_world
from pelton.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy

_RanksAndMatrix = Union[list[int], "tuple[list[int], numpy.ndarray[Any, Any]]"]


def InferSourceFromDestinationRanks(  # noqa: N802 (the name is BlueFog's)
    dst_ranks: Sequence[int], construct_adjacency_matrix: bool = False
) -> _RanksAndMatrix:
    """Who sends to this rank. Collective.

    Args:
      dst_ranks: whom this rank sends to.
      construct_adjacency_matrix: whether to give the matrix, too: entry [i, j] is the weight of the edge from i to j,
        and its columns add up to 1, self-loops included.

    Returns:
      The sources, ascending; with the matrix if it is asked for.

    Raises:
      InvalidArgument: a rank does not exist, is this one, or is named twice; on all ranks.
    """
    return _infer("dst_ranks", dst_ranks, construct_adjacency_matrix)


def InferDestinationFromSourceRanks(  # noqa: N802
    src_ranks: Sequence[int], construct_adjacency_matrix: bool = False
) -> _RanksAndMatrix:
    """Who receives from this rank. Collective.

    Args:
      src_ranks: whom this rank receives from.
      construct_adjacency_matrix: as `InferSourceFromDestinationRanks`.

    Returns:
      The destinations, ascending; with the matrix if it is asked for.

    Raises:
      InvalidArgument: a rank does not exist, is this one, or is named twice; on all ranks.
    """
    return _infer("src_ranks", src_ranks, construct_adjacency_matrix)


def _infer(name: str, ranks: Sequence[int], with_matrix: bool) -> _RanksAndMatrix:
    """Row r of what is gathered says whom rank r has named."""
    world = active_world()
    complaint = _complaint_about(world, name, ranks)
    agree(world.session.world_communicator, complaint)
    mine = torch.zeros(1, world.size, dtype=torch.uint8, device="cpu")
    mine[0, [int(rank) for rank in ranks]] = 1
    named = world.queue.allgather_now(mine, None)
    found: list[int] = named[:, world.rank].nonzero().flatten().tolist()
    if not with_matrix:
        return found
    edges = named.double() if name == "dst_ranks" else named.double().T
    edges = edges + torch.eye(world.size, dtype=torch.float64, device="cpu")
    return found, (edges / edges.sum(0)).numpy()


def _complaint_about(world: World, name: str, ranks: Sequence[Any]) -> InvalidArgument | None:
    for rank in ranks:
        if not isinstance(rank, numbers.Integral) or not 0 <= int(rank) < world.size:
            return InvalidArgument(f"{name}: {rank!r} is not in [0, {world.size})")
    if world.rank in ranks:
        return InvalidArgument(f"{name}: rank {world.rank} is this rank itself")
    if len(set(ranks)) != len(ranks):
        return InvalidArgument(f"{name}={list(ranks)}: names a rank twice")
    return None
