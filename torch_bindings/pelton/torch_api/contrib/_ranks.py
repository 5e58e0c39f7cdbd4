"""Which rank of how many this process is, for what may be made before the ranks have met."""

from __future__ import annotations

from typing import Union

import torch.distributed as dist

from pelton._training import _session, env
from pelton._training.communication import BaguaProcessGroup, from_torch_group
from pelton.errors import InvalidArgument

AnyGroup = Union[dist.ProcessGroup, BaguaProcessGroup, None]


def rank_and_size(process_group: AnyGroup = None) -> tuple[int, int]:
    """This rank's number in a group, and the group's size; of all ranks, before they have met, what the launcher says.

    Args:
      process_group: a group of torch's or of ours; None for all ranks.

    Raises:
      InvalidArgument: it is no group, or this rank is not one of its members.
      FailedPrecondition: a group of torch's is given and the process group is not initialised.
    """
    if process_group is None:
        if not _session.is_initialized():
            return env.get_rank(), env.get_world_size()
        backend = _session.current().backend
        return backend.rank, backend.world_size
    group = from_torch_group(process_group) if isinstance(process_group, dist.ProcessGroup) else process_group
    if not isinstance(group, BaguaProcessGroup):
        raise InvalidArgument(f"process_group: must be a group of torch's or ours, or None; is {process_group!r}")
    rank = _session.current().backend.rank
    if rank not in group.ranks:
        raise InvalidArgument(f"process_group: this rank, {rank}, is not one of its ranks {group.ranks}")
    return group.ranks.index(rank), len(group.ranks)
