"""Groups of ranks: the default one, those of `new_group`, and those that torch.distributed has."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Union

import torch.distributed as dist

from pelton import _C
from pelton._training import _before_writes, _session
from pelton.errors import FailedPrecondition, InvalidArgument, NotFound

_DEFAULT = "default"
_KINDS = ("global", "inter", "intra")


class NonMember:
    """Stands for the communicator of a group on a rank outside of it; collectives on it return at once.

    Threads: a value. Owns: nothing.
    """

    def rank(self) -> int:
        """-1."""
        return -1

    def nranks(self) -> int:
        """0."""
        return 0

    def __repr__(self) -> str:
        return "CommMember.NON_COMM_MEMBER"


class World:
    """Stands for the communicator of all ranks. Threads: a value. Owns: nothing."""

    def __repr__(self) -> str:
        return "comm.WORLD"


class comm:  # noqa: N801  (Bagua's name)
    """Bagua's name for the communicator of all ranks."""

    WORLD = World()


class CommMember:
    """What may stand in place of a communicator."""

    WORLD = comm.WORLD
    NON_COMM_MEMBER = NonMember()


AnyCommunicator = Union[_C.Communicator, NonMember, World, None]


def member(communicator: AnyCommunicator) -> _C.Communicator | None:
    """The communicator that a collective's argument `comm` means; None on a rank outside of its group.

    Raises:
      InvalidArgument: it is none.
      FailedPrecondition: the process group is not initialised.
    """
    _before_writes.settle()
    if isinstance(communicator, _C.Communicator):
        return communicator
    if communicator is None or communicator is comm.WORLD:
        return _session.current().world_communicator
    if isinstance(communicator, NonMember):
        return None
    raise InvalidArgument(f"comm={communicator!r}: must be a communicator of a group, or None")


class BaguaProcessGroup:
    """A set of ranks that communicate with each other.

    Threads: the main thread. Owns: nothing; its communicators belong to the process's session, and are opened when
    they are first asked for, which is collective over their ranks.
    """

    def __init__(self, ranks: Sequence[int], stream: object, group_name: str) -> None:
        """Args:
        ranks: numbers of its members in the job, ascending.
        stream: kept for the GPU; None on the CPU.
        group_name: the same on all members.
        """
        self.ranks = list(ranks)
        self.stream = stream
        self.group_name = group_name
        self._is_destroyed = False
        self._session = weakref.ref(_session.current()) if _session.is_initialized() else None

    def get_global_communicator(self) -> Any:
        """The communicator of all members; CommMember.NON_COMM_MEMBER on other ranks.

        Raises:
          FailedPrecondition: the group was destroyed.
          DeadlineExceeded: not all members opened it in time.
        """
        return self._communicator("global", self.ranks)

    def get_inter_node_communicator(self) -> Any:
        """The communicator of the first member on each host; CommMember.NON_COMM_MEMBER on other ranks.

        Raises:
          PeltonError: as `get_global_communicator`.
        """
        return self._communicator("inter", self._leaders())

    def get_intra_node_communicator(self) -> Any:
        """The communicator of the members on this rank's host; CommMember.NON_COMM_MEMBER outside of the group.

        Raises:
          PeltonError: as `get_global_communicator`.
        """
        session = self._live_session()
        here = session.hosts[session.backend.rank]
        return self._communicator("intra", [rank for rank in self.ranks if session.hosts[rank] == here])

    def _leaders(self) -> list[int]:
        hosts = self._live_session().hosts
        first_of = {hosts[rank]: rank for rank in reversed(self.ranks)}
        return sorted(first_of.values())

    def _live_session(self) -> _session.Session:
        session = _session.current()
        made_in = self._session() if self._session is not None else session
        if made_in is not session or self._is_destroyed:
            raise FailedPrecondition(f"the group '{self.group_name}' of ranks {self.ranks} was destroyed")
        return session

    def _communicator(self, kind: str, ranks: list[int]) -> Any:
        session = self._live_session()
        if session.backend.rank not in self.ranks or session.backend.rank not in ranks:
            return CommMember.NON_COMM_MEMBER
        if kind == "global" and _is_default(self, session):
            return session.world_communicator
        return session.communicator(self.group_name, kind, ranks)


def _is_default(group: BaguaProcessGroup, session: _session.Session) -> bool:
    return group.group_name == _DEFAULT and len(group.ranks) == session.backend.world_size


def _get_default_group() -> BaguaProcessGroup:
    """The group of all ranks of the job.

    Raises:
      RuntimeError: the process group is not initialised.
    """
    session = _session.current()
    if _DEFAULT not in session.groups:
        session.groups[_DEFAULT] = BaguaProcessGroup(range(session.backend.world_size), None, _DEFAULT)
    group: BaguaProcessGroup = session.groups[_DEFAULT]
    return group


def new_group(ranks: Sequence[int] | None = None, stream: object = None) -> BaguaProcessGroup:
    """Makes a group. To be called by all ranks of the job, in the same order; members wait for each other.

    Args:
      ranks: its members, in any order, each once; None for all.
      stream: kept for the GPU; None on the CPU.

    Returns:
      The group; on ranks that are not in it its communicators are CommMember.NON_COMM_MEMBER.

    Raises:
      InvalidArgument: something in `ranks` is not a rank of the job, or is there twice.
      DeadlineExceeded: not all members called it in time.
    """
    session = _session.current()
    size = session.backend.world_size
    session.group_count += 1
    members = sorted(_checked_ranks(range(size) if ranks is None else ranks, size))
    group = BaguaProcessGroup(members, stream, f"group {session.group_count}")
    session.groups[group.group_name] = group
    group.get_global_communicator()
    return group


def _checked_ranks(ranks: Sequence[int], size: int) -> list[int]:
    listed = list(ranks) if hasattr(ranks, "__iter__") else None
    if not listed:
        raise InvalidArgument(f"ranks={ranks!r}: must be a list of ranks, at least one")
    for rank in listed:
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < size:
            raise InvalidArgument(f"ranks={listed!r}: {rank!r} is not a rank of the job, 0 to {size - 1}")
    if len(set(listed)) != len(listed):
        raise InvalidArgument(f"ranks={listed!r}: a rank is there twice")
    return listed


def get_communicator(group_name: str, comm_name: str) -> Any:
    """A communicator of the group with that name.

    Args:
      group_name: the group's `group_name`.
      comm_name: "global", "inter" or "intra".

    Raises:
      NotFound: there is no such group; the text lists the names.
      InvalidArgument: there is no such kind of communicator.
    """
    _get_default_group()
    groups = _session.current().groups
    if group_name not in groups:
        raise NotFound(f"group_name={group_name!r}: no such group; there are: {', '.join(sorted(groups))}")
    group = groups[group_name]
    if comm_name not in _KINDS:
        raise InvalidArgument(f"comm_name={comm_name!r}: must be one of {', '.join(_KINDS)}")
    getters = (group.get_global_communicator, group.get_inter_node_communicator, group.get_intra_node_communicator)
    return getters[_KINDS.index(comm_name)]()


def destroy_process_group(group: BaguaProcessGroup | None = None) -> None:
    """Ends a group, or with the default one everything: the rank leaves the job. Idempotent.

    Models that are wrapped for the group become plain ones again, and its communicators fail with FailedPrecondition.
    Not collective, but every member should call it: one that goes on to wait for this rank there misses its deadline,
    and a rank that ends without leaving the job counts as lost to ranks that wait.

    Args:
      group: which one; None for the default group.

    Raises:
      InvalidArgument: it is no group.
      PeltonError: the other ranks were not told in good order.
    """
    if group is not None and not isinstance(group, BaguaProcessGroup):
        raise InvalidArgument(f"group={group!r}: must be a BaguaProcessGroup or None")
    if not _session.is_initialized():
        return
    if group is None or _is_default(group, _session.current()):
        _session.destroy()
    else:
        group._is_destroyed = True
        _session.current().destroy_group(group.group_name)


_torch_to_bagua_pg_map: weakref.WeakKeyDictionary[dist.ProcessGroup, BaguaProcessGroup] = weakref.WeakKeyDictionary()


def from_torch_group(group: dist.ProcessGroup, stream: object = None) -> BaguaProcessGroup:
    """The group of the same ranks as one of torch.distributed's; the same object each time. Collective at first.

    Args:
      group: a group of torch's. What torch hands to ranks outside of a group, `GroupMember.NON_GROUP_MEMBER`, becomes a
        group without ranks, whose communicators are CommMember.NON_COMM_MEMBER.
      stream: kept for the GPU; None on the CPU.

    Raises:
      InvalidArgument: it is no such group, or torch.distributed numbers the ranks otherwise.
    """
    made = _group_of(group, stream)
    made.get_global_communicator()
    return made


def _group_of(group: Any, stream: object = None) -> BaguaProcessGroup:
    """The same without a word to the other ranks: communicators are opened when they are first asked for."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return BaguaProcessGroup([], stream, "torch non-member")
    if not isinstance(group, dist.ProcessGroup):
        raise InvalidArgument(f"group={group!r}: must be a group of torch.distributed")
    session = _session.current()
    torchs = (dist.get_rank(), dist.get_world_size())
    if torchs != (session.backend.rank, session.backend.world_size):
        raise InvalidArgument(
            f"group: torch.distributed calls this rank {torchs[0]} of {torchs[1]}, the job "
            f"{session.backend.rank} of {session.backend.world_size}"
        )
    known: BaguaProcessGroup | None = _torch_to_bagua_pg_map.get(group)
    is_alive = known is not None and session.groups.get(known.group_name) is known
    if known is not None and is_alive:
        return known
    name = f"torch {group.group_name}"
    made = BaguaProcessGroup(sorted(dist.get_process_group_ranks(group)), stream, name)
    session.groups[name] = made
    _torch_to_bagua_pg_map[group] = made
    return made


AnyGroup = Union[dist.ProcessGroup, BaguaProcessGroup, None]


def own_group(process_group: AnyGroup = None) -> BaguaProcessGroup:
    """The group of the same ranks, of which this one is a member. Not collective.

    Args:
      process_group: a group of torch's or of ours; None for all ranks.

    Raises:
      InvalidArgument: it is no group, or this rank is not one of its members.
      FailedPrecondition: the process group is not initialised.
    """
    if process_group is None:
        return _get_default_group()
    group = _group_of(process_group) if isinstance(process_group, dist.ProcessGroup) else process_group
    if not isinstance(group, BaguaProcessGroup):
        raise InvalidArgument(f"process_group: must be a group of torch's or ours, or None; is {process_group!r}")
    rank = _session.current().backend.rank
    if rank not in group.ranks:
        raise InvalidArgument(f"process_group: this rank, {rank}, is not one of its ranks {group.ranks}")
    return group


class _TorchGroup:
    """The methods that torch's groups get; never instantiated."""

    def bagua_patch(self: Any, stream: object = None) -> Any:
        """Makes the group of the same ranks (`from_torch_group`), and returns itself."""
        from_torch_group(self, stream)
        return self

    @property
    def bagua_pg(self: Any) -> BaguaProcessGroup:
        """The group of the same ranks. Looking at it, as debuggers do, makes no rank wait for another."""
        return _group_of(self)

    def bagua_get_global_communicator(self: Any) -> Any:
        """As that of `bagua_pg`."""
        return self.bagua_pg.get_global_communicator()

    def bagua_get_inter_node_communicator(self: Any) -> Any:
        """As that of `bagua_pg`."""
        return self.bagua_pg.get_inter_node_communicator()

    def bagua_get_intra_node_communicator(self: Any) -> Any:
        """As that of `bagua_pg`."""
        return self.bagua_pg.get_intra_node_communicator()


for _name, _member in vars(_TorchGroup).items():
    if _name.startswith("bagua"):
        setattr(dist.ProcessGroup, _name, _member)
