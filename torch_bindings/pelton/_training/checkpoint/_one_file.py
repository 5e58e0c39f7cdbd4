"""What all ranks have of a checkpoint, as one value: for frameworks that have rank 0 alone write it, into one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree

from pelton._training._encoding import encode
from pelton._training._objects import broadcast_object
from pelton._training.checkpoint import _entries
from pelton._training.checkpoint._entries import Entries
from pelton._training.checkpoint._ranks import Ranks
from pelton._training.checkpoint.checkpointing import _state_of
from pelton._warn import warn
from pelton.errors import InvalidArgument

Part = dict[str, Any]  # of a rank: "own" entries, rank 0's that are "absent" here, what the "algorithm" remembers


def gather(entries: Entries, inner: Any) -> list[Part]:
    """What each rank has beside rank 0's entries, and what the algorithm remembers on it. Collective.

    What cannot travel, because it is more than tensors and plain values, is left to rank 0's, with a warning.

    Args:
      entries: this rank's.
      inner: the object behind the wrapped model.

    Returns:
      On rank 0 the parts of all, in rank order; elsewhere nothing.

    Raises:
      FailedPrecondition: the algorithm has a round under way.
      DeadlineExceeded, PeerLost: not all ranks took part.
    """
    ranks = Ranks({"": inner})
    rank_0s = ranks.by_first(lambda: _entries.digests(entries))
    mine = ranks.together(lambda: _part(entries, {} if ranks.rank == 0 else rank_0s, inner, ranks.rank))
    parts = []
    for rank in range(ranks.size):
        part = broadcast_object(mine, rank, ranks.communicator)
        if ranks.rank == 0:
            parts.append(part)
    return parts


def entries_of(entries: Entries, parts: Sequence[Part], rank: int, size: int) -> tuple[Entries, Any]:
    """What a rank goes on with: its own where as many ranks as now have saved, else what the ranks had on average.

    Args:
      entries: rank 0's.
      parts: see `gather`.
      rank: this one.
      size: how many there are now.

    Returns:
      The entries, and what the algorithm remembered: on this rank, or a list of all ranks'.
    """
    if len(parts) == size:
        mine = parts[rank]
        return _entries.of_rank(entries, mine["absent"], mine["own"]), mine["algorithm"]
    everyones = [_entries.of_rank(entries, part["absent"], part["own"]) for part in parts]
    return _entries.means(everyones), [part["algorithm"] for part in parts]


def _part(entries: Entries, rank_0s: dict[_entries.Key, bytes], inner: Any, rank: int) -> Part:
    own, absent = ({}, []) if rank == 0 else _entries.own_of(entries, rank_0s)
    own = {key: value for key, value in own.items() if _can_travel(key, value)}
    # Rank 0 needs no memory of its GPU for the other ranks' tensors.
    own = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), own)
    return {"own": own, "absent": absent, "algorithm": _state_of(inner)}


def _can_travel(key: _entries.Key, value: Any) -> bool:
    try:
        encode(value, [], " ".join(map(str, key)))
    except InvalidArgument as error:
        warn(f"a checkpoint has rank 0's alone: {error}")
        return False
    return True
