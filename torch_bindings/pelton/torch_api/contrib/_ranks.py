"""Which rank of how many this process is, for what may be made before the ranks have met."""

from __future__ import annotations

from pelton._training import _session, env
from pelton._training._groups import AnyGroup, own_group


def rank_and_size(process_group: AnyGroup = None) -> tuple[int, int]:
    """This rank's number in a group, and the group's size; of all ranks, before they have met, what the launcher says.

    Args:
      process_group: a group of torch's or of ours; None for all ranks.

    Raises:
      InvalidArgument: it is no group, or this rank is not one of its members.
      FailedPrecondition: a group is given and the process group is not initialised.
    """
    if process_group is None and not _session.is_initialized():
        return env.get_rank(), env.get_world_size()
    ranks = own_group(process_group).ranks
    return ranks.index(_session.current().backend.rank), len(ranks)
