"""BlueFog's operations: collectives over all ranks or a machine's, and those between neighbors.

An operation between neighbors waits for its neighbors alone. Two ranks match theirs by name, in any order, and those
without a name by the order of their calls. The collectives are called in the same order by all ranks, and so are the
hierarchical operations by the ranks of a machine, named or not, because each begins with a mean over that machine.

Tensors are on the CPU or on this rank's GPU. On GPUs all operations, those between neighbors too, run in the order of
their calls; two ranks that take part in the same ones call them in the same order, named or not, and another order is
an error at both. The first operation of a GPU is called by all ranks. Each comes after what the caller's current stream
has by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union, cast

import torch

from pelton.bluefog._names import NAMES
from pelton.bluefog.torch import _handles
from pelton.bluefog.torch._basics import *  # noqa: F403 (all of them, as in BlueFog)
from pelton.bluefog.torch._basics import active_world
from pelton.bluefog.torch._calls import allreduce_now, begin_allreduce, check_tensor, host_of, now, root_of
from pelton.bluefog.torch._handles import HANDLES
from pelton.bluefog.torch._weights import Destinations, Weights, gather_table_of, machine_table_of, table_of
from pelton.bluefog.torch._windows import *  # noqa: F403 (all of them, as in BlueFog)
from pelton.errors import InvalidArgument

Ranks = Union[Sequence[int], None]


def poll(handle: int) -> bool:
    """Whether an operation is done.

    Args:
      handle: what its non-blocking call has given.

    Raises:
      InvalidArgument: there is no such operation, or it was waited for.
    """
    return HANDLES.poll(handle)


def synchronize(handle: int) -> torch.Tensor:
    """Waits for an operation, once; its result.

    Args:
      handle: what its non-blocking call has given.

    Raises:
      InvalidArgument: there is no such operation, it was waited for, or ranks' tensors differ.
      PeltonError: it failed; the text names operation and ranks.
    """
    return HANDLES.wait(handle)


def wait(handle: int) -> torch.Tensor:
    """The same as `synchronize`.

    Args:
      handle: what its non-blocking call has given.
    """
    return synchronize(handle)


def barrier() -> None:
    """Waits for all ranks.

    Raises:
      PeerLost: a rank has left.
      PeltonError: they are at other operations, or have not come in time; the text names them.
    """
    try:
        active_world().queue.barrier()
    except InvalidArgument as error:
        raise NAMES.explain(error) from None


def allreduce(
    tensor: torch.Tensor, average: bool = True, is_hierarchical_local: bool = False, name: str | None = None
) -> torch.Tensor:
    """The mean or the sum over all ranks, in a new tensor.

    Args:
      tensor: of one shape and dtype on all ranks.
      average: whether to divide by the number of ranks.
      is_hierarchical_local: over the ranks of this machine alone.
      name: of the operation; the third positional argument may be it, as in BlueFog 0.2.

    Raises:
      NoMean: a mean of whole numbers.
      InvalidArgument: ranks' tensors or names differ; the name is in flight.
    """
    return allreduce_now(tensor, average, is_hierarchical_local, name, in_place=False)


def allreduce_nonblocking(
    tensor: torch.Tensor, average: bool = True, is_hierarchical_local: bool = False, name: str | None = None
) -> int:
    """Begins `allreduce`; the arguments are its.

    Args:
      tensor: not to be changed until the end.
      average: whether to divide by the number of ranks.
      is_hierarchical_local: over the ranks of this machine alone.
      name: of the operation.
    """
    return begin_allreduce(tensor, average, is_hierarchical_local, name, in_place=False)


def allreduce_(
    tensor: torch.Tensor, average: bool = True, is_hierarchical_local: bool = False, name: str | None = None
) -> torch.Tensor:
    """`allreduce` into the tensor itself.

    Args:
      tensor: receives the result.
      average: whether to divide by the number of ranks.
      is_hierarchical_local: over the ranks of this machine alone.
      name: of the operation.
    """
    return allreduce_now(tensor, average, is_hierarchical_local, name, in_place=True)


def allreduce_nonblocking_(
    tensor: torch.Tensor, average: bool = True, is_hierarchical_local: bool = False, name: str | None = None
) -> int:
    """Begins `allreduce_`.

    Args:
      tensor: receives the result.
      average: whether to divide by the number of ranks.
      is_hierarchical_local: over the ranks of this machine alone.
      name: of the operation.
    """
    return begin_allreduce(tensor, average, is_hierarchical_local, name, in_place=True)


class _Broadcast(torch.autograd.Function):
    """A broadcast whose gradient is the sum of all ranks' at the root, and 0 elsewhere."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None) -> torch.Tensor:
        ctx.root_rank = root_rank
        return _broadcast_now(tensor, root_rank, name, in_place=False)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        total = allreduce(gradients[0].contiguous(), average=False)
        return (total if active_world().rank == ctx.root_rank else torch.zeros_like(total)), None, None


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """The root's tensor, in a new one. Differentiable: its gradient is the sum of all ranks' at the root.

    Args:
      tensor: of one shape and dtype on all ranks.
      root_rank: whose values all get.
      name: of the operation.

    Raises:
      InvalidArgument: there is no such rank; ranks give different ones; the name is in flight.
    """
    check_tensor("broadcast", tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        return cast(torch.Tensor, _Broadcast.apply(tensor, root_rank, name))  # type: ignore[no-untyped-call]
    return _broadcast_now(tensor, root_rank, name, in_place=False)


def broadcast_nonblocking(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> int:
    """Begins `broadcast`, whose result then carries no graph.

    Args:
      tensor: of one shape and dtype on all ranks.
      root_rank: whose values all get.
      name: of the operation.
    """
    return _broadcast(tensor, root_rank, name, in_place=False)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """`broadcast` into the tensor itself.

    Args:
      tensor: receives the root's values.
      root_rank: whose values all get.
      name: of the operation.
    """
    check_tensor("broadcast", tensor)
    return _broadcast_now(tensor, root_rank, name, in_place=True)


def broadcast_nonblocking_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> int:
    """Begins `broadcast_`.

    Args:
      tensor: receives the root's values.
      root_rank: whose values all get.
      name: of the operation.
    """
    return _broadcast(tensor, root_rank, name, in_place=True)


def _broadcast(tensor: torch.Tensor, root_rank: int, name: str | None, in_place: bool) -> int:
    check_tensor("broadcast", tensor)
    root = root_of("broadcast", root_rank)
    world = active_world()
    full = HANDLES.claim(_handles.BROADCAST, name)
    operation = world.queue_of(tensor).broadcast(tensor, root, in_place, name)
    return HANDLES.add(_handles.BROADCAST, operation, full, world.timeline)


def _broadcast_now(tensor: torch.Tensor, root_rank: int, name: str | None, in_place: bool) -> torch.Tensor:
    root = root_of("broadcast", root_rank)
    world = active_world()
    queue = world.queue_of(tensor)
    return now(world, _handles.BROADCAST, name, queue.broadcast_now, tensor, root, in_place, name)


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """The ranks' tensors, one behind the other along the first dimension, in which they may differ.

    Args:
      tensor: of one dtype, and but for the first dimension of one shape on all ranks.
      name: of the operation.

    Raises:
      InvalidArgument: it has no dimension; ranks' tensors do not fit; the name is in flight.
    """
    check_tensor("allgather", tensor)
    world = active_world()
    queue = world.queue_of(tensor)
    return now(world, _handles.ALLGATHER, name, queue.allgather_now, tensor, name, host_of(world, queue))


def allgather_nonblocking(tensor: torch.Tensor, name: str | None = None) -> int:
    """Begins `allgather`. With a tensor of a GPU all ranks have called it too when this returns.

    Args:
      tensor: not to be changed until the end.
      name: of the operation.
    """
    check_tensor("allgather", tensor)
    world = active_world()
    full = HANDLES.claim(_handles.ALLGATHER, name)
    queue = world.queue_of(tensor)
    try:
        operation = queue.allgather(tensor, name, host_of(world, queue))
    except InvalidArgument as error:  # of the shapes, for which a GPU's waits
        raise NAMES.explain(error) from None
    return HANDLES.add(_handles.ALLGATHER, operation, full, world.timeline)


def neighbor_allreduce(
    tensor: torch.Tensor,
    *older: Any,
    self_weight: float | None = None,
    src_weights: Weights | None = None,
    dst_weights: Destinations = None,
    enable_topo_check: bool = True,
    name: str | None = None,
    neighbor_weights: Weights | None = None,
    send_neighbors: Ranks = None,
) -> torch.Tensor:
    """self_weight * tensor + the sum over the sources of src_weights[j] * (what j gives to this rank) * j's tensor.

    Without weights they are the topology's. With self_weight and src_weights the sources are among the topology's
    in-neighbors, and those not named have the weight 0. With dst_weights the edges are those that the call names, on
    all ranks that have a part in it; no topology is looked at.

    Args:
      tensor: of one shape and dtype at both ends of each edge: float16 to float64, or bfloat16.
      older: BlueFog 0.2's self_weight, neighbor_weights and name, by position.
      self_weight: of this rank's own tensor.
      src_weights: by source.
      dst_weights: by destination, the weight that it receives the tensor with; a list gives each 1.
      enable_topo_check: where dst_weights are given, whether all ranks first compare the ends of all edges.
      name: what ranks match by.
      neighbor_weights: the older name of src_weights.
      send_neighbors: the older name of a list of dst_weights.

    Returns:
      A new tensor without a graph.

    Raises:
      InvalidArgument: arguments do not belong together or name ranks that they must not; tensors at two ends of an edge
        differ, at both ends; an edge has one end, on all ranks; the name is in flight.
    """
    if older or neighbor_weights is not None or send_neighbors is not None:
        self_weight, src_weights, dst_weights, name, enable_topo_check = _newer(
            older, (self_weight, src_weights, dst_weights, name, enable_topo_check), neighbor_weights, send_neighbors
        )
    check_tensor("neighbor_allreduce", tensor)
    world = active_world()
    table = table_of(world, self_weight, src_weights, dst_weights, enable_topo_check)
    queue = world.queue_of(tensor)
    return now(world, _handles.NEIGHBOR_ALLREDUCE, name, queue.neighbor_allreduce_now, tensor, table, name)


def neighbor_allreduce_nonblocking(
    tensor: torch.Tensor,
    *older: Any,
    self_weight: float | None = None,
    src_weights: Weights | None = None,
    dst_weights: Destinations = None,
    enable_topo_check: bool = True,
    name: str | None = None,
    neighbor_weights: Weights | None = None,
    send_neighbors: Ranks = None,
) -> int:
    """Begins `neighbor_allreduce`. The check of the topology, if there is one, is over when this returns.

    Args:
      tensor: not to be changed until the end.
      older: as there.
      self_weight: as there.
      src_weights: as there.
      dst_weights: as there.
      enable_topo_check: as there.
      name: as there.
      neighbor_weights: as there.
      send_neighbors: as there.
    """
    if older or neighbor_weights is not None or send_neighbors is not None:
        self_weight, src_weights, dst_weights, name, enable_topo_check = _newer(
            older, (self_weight, src_weights, dst_weights, name, enable_topo_check), neighbor_weights, send_neighbors
        )
    check_tensor("neighbor_allreduce", tensor)
    world = active_world()
    full = HANDLES.claim(_handles.NEIGHBOR_ALLREDUCE, name)
    table = table_of(world, self_weight, src_weights, dst_weights, enable_topo_check)
    operation = world.queue_of(tensor).neighbor_allreduce(tensor, table, name)
    return HANDLES.add(_handles.NEIGHBOR_ALLREDUCE, operation, full, world.timeline)


_Given = tuple[Union[float, None], Union[Weights, None], Destinations, Union[str, None], bool]


def _newer(older: tuple[Any, ...], given: _Given, neighbor_weights: Weights | None, send_neighbors: Ranks) -> _Given:
    """The arguments of today for those of BlueFog 0.2: (self_weight, weights, name), and (self_weight, weights,
    send_neighbors, enable_topo_check, name) of its later releases, told apart by their types.
    """
    self_weight, weights, *rest = (*older, None, None)[: max(2, len(older))]
    by_type: dict[type, Any] = {}
    for value in rest:
        kind = next((kind for kind in (str, bool) if isinstance(value, kind)), list)
        if value is not None and kind in by_type:
            raise InvalidArgument(f"positional arguments {older!r}: two of one type behind the weights; name them")
        if value is not None:
            by_type[kind] = value
    return (
        given[0] if given[0] is not None else self_weight,
        next((w for w in (given[1], neighbor_weights, weights) if w is not None), None),
        next((d for d in (given[2], send_neighbors, by_type.get(list)) if d is not None), None),
        given[3] if given[3] is not None else by_type.get(str),
        by_type.get(bool, given[4]),
    )


def neighbor_allgather(
    tensor: torch.Tensor,
    *older: Any,
    src_ranks: Ranks = None,
    dst_ranks: Ranks = None,
    enable_topo_check: bool = True,
    name: str | None = None,
) -> torch.Tensor:
    """The sources' tensors, one behind the other along the first dimension, in which they may differ; not the own one.

    Args:
      tensor: of one dtype, and but for the first dimension of one shape at both ends of each edge.
      older: BlueFog 0.2's name, by position.
      src_ranks: the sources, in the order of the result; None for the topology's, ascending.
      dst_ranks: the destinations; given if src_ranks are.
      enable_topo_check: where they are given, whether all ranks first compare the ends of all edges.
      name: what ranks match by.

    Raises:
      InvalidArgument: it has no dimension; only one of the lists is given, or names ranks that it must not; tensors do
        not fit, where they arrive; an edge has one end, on all ranks; the name is in flight.
    """
    return synchronize(
        neighbor_allgather_nonblocking(
            tensor,
            *older,
            src_ranks=src_ranks,
            dst_ranks=dst_ranks,
            enable_topo_check=enable_topo_check,
            name=name,
        )
    )


def neighbor_allgather_nonblocking(
    tensor: torch.Tensor,
    *older: Any,
    src_ranks: Ranks = None,
    dst_ranks: Ranks = None,
    enable_topo_check: bool = True,
    name: str | None = None,
) -> int:
    """Begins `neighbor_allgather`. With a tensor of a GPU the neighbors have called it too when this returns.

    Args:
      tensor: not to be changed until the end.
      older: as there.
      src_ranks: as there.
      dst_ranks: as there.
      enable_topo_check: as there.
      name: as there.
    """
    if len(older) > 1:
        raise InvalidArgument(f"{len(older) + 1} positional arguments: give at most tensor and name")
    if older and name is None:
        name = older[0]
    check_tensor("neighbor_allgather", tensor)
    world = active_world()
    full = HANDLES.claim(_handles.NEIGHBOR_ALLGATHER, name)
    table, order = gather_table_of(world, src_ranks, dst_ranks, enable_topo_check)
    queue = world.queue_of(tensor)
    operation = queue.neighbor_allgather(tensor, table, name, host_of(world, queue))

    def reorder(result: torch.Tensor) -> torch.Tensor:
        parts = dict(zip(sorted(order), torch.split(result, operation.lengths())))
        return torch.cat([parts[rank] for rank in order])

    finish = None if order == sorted(order) else reorder
    return HANDLES.add(_handles.NEIGHBOR_ALLGATHER, operation, full, world.timeline, finish)


def hierarchical_neighbor_allreduce(
    tensor: torch.Tensor,
    *,
    self_weight: float | None = None,
    src_machine_weights: Weights | None = None,
    dst_machine_weights: Destinations = None,
    enable_topo_check: bool = False,
    name: str | None = None,
) -> torch.Tensor:
    """The neighbor average of machines, each of which has the mean of its ranks' tensors; the same on its ranks.

    Args:
      tensor: of one shape and dtype on all ranks of machines that are neighbors.
      self_weight: of this machine; given if one of the two below is.
      src_machine_weights: by source machine.
      dst_machine_weights: by destination machine; a list gives each 1.
      enable_topo_check: whether all ranks first compare the ends of all edges.
      name: what ranks match by.

    Raises:
      NoMachineTopology: there is none, and no weights are given.
      InvalidArgument: machines have not equally many ranks; weights name machines that are no neighbors, or not all
        three are given; else as `neighbor_allreduce`.
    """
    return synchronize(
        hierarchical_neighbor_allreduce_nonblocking(
            tensor,
            self_weight=self_weight,
            src_machine_weights=src_machine_weights,
            dst_machine_weights=dst_machine_weights,
            enable_topo_check=enable_topo_check,
            name=name,
        )
    )


def hierarchical_neighbor_allreduce_nonblocking(
    tensor: torch.Tensor,
    *,
    self_weight: float | None = None,
    src_machine_weights: Weights | None = None,
    dst_machine_weights: Destinations = None,
    enable_topo_check: bool = False,
    name: str | None = None,
) -> int:
    """Begins `hierarchical_neighbor_allreduce`.

    Args:
      tensor: not to be changed until the end.
      self_weight: as there.
      src_machine_weights: as there.
      dst_machine_weights: as there.
      enable_topo_check: as there.
      name: as there.
    """
    check_tensor("hierarchical_neighbor_allreduce", tensor)
    world = active_world()
    full = HANDLES.claim(_handles.NEIGHBOR_ALLREDUCE, name)
    table = machine_table_of(world, self_weight, src_machine_weights, dst_machine_weights, enable_topo_check)
    queue, local_queue = world.queue_of(tensor), world.local_queue_of(tensor)
    operation = queue.hierarchical_neighbor_allreduce(tensor, table, local_queue, name)
    return HANDLES.add(_handles.NEIGHBOR_ALLREDUCE, operation, full, world.timeline)


def pair_gossip(
    tensor: torch.Tensor,
    target_rank: int,
    self_weight: float | None = None,
    pair_weight: float | None = None,
    name: str | None = None,
) -> torch.Tensor:
    """self_weight * tensor + pair_weight * that of another rank, which calls it with this one.

    Args:
      tensor: of one shape and dtype on both.
      target_rank: the other one.
      self_weight: 1/2 where both are None.
      pair_weight: 1/2 where both are None.
      name: what the two match by.

    Raises:
      InvalidArgument: only one weight is given; the rank is this one, or there is none; else as `neighbor_allreduce`.
    """
    return synchronize(pair_gossip_nonblocking(tensor, target_rank, self_weight, pair_weight, name))


def pair_gossip_nonblocking(
    tensor: torch.Tensor,
    target_rank: int,
    self_weight: float | None = None,
    pair_weight: float | None = None,
    name: str | None = None,
) -> int:
    """Begins `pair_gossip`.

    Args:
      tensor: not to be changed until the end.
      target_rank: the other one.
      self_weight: as there.
      pair_weight: as there.
      name: as there.
    """
    if (self_weight is None) != (pair_weight is None):
        raise InvalidArgument(f"self_weight={self_weight!r}, pair_weight={pair_weight!r}: give both or none")
    return neighbor_allreduce_nonblocking(
        tensor,
        self_weight=0.5 if self_weight is None else self_weight,
        src_weights={target_rank: 0.5 if pair_weight is None else pair_weight},
        dst_weights=[target_rank],
        enable_topo_check=False,
        name=name,
    )


def allreduce_async(tensor: torch.Tensor, average: bool = True, name: str | None = None) -> int:
    """BlueFog 0.2's name of `allreduce_nonblocking`.

    Args:
      tensor: as there.
      average: as there.
      name: as there.
    """
    return allreduce_nonblocking(tensor, average, name=name)


def neighbor_allreduce_async(
    tensor: torch.Tensor,
    self_weight: float | None = None,
    neighbor_weights: Mapping[int, float] | None = None,
    name: str | None = None,
) -> int:
    """BlueFog 0.2's name of `neighbor_allreduce_nonblocking`.

    Args:
      tensor: as there.
      self_weight: as there.
      neighbor_weights: src_weights there.
      name: as there.
    """
    return neighbor_allreduce_nonblocking(tensor, self_weight=self_weight, src_weights=neighbor_weights, name=name)


def neighbor_allgather_async(tensor: torch.Tensor, name: str | None = None) -> int:
    """BlueFog 0.2's name of `neighbor_allgather_nonblocking`.

    Args:
      tensor: as there.
      name: as there.
    """
    return neighbor_allgather_nonblocking(tensor, name=name)


# BlueFog 0.2's names.
allgather_async = allgather_nonblocking
broadcast_async = broadcast_nonblocking
broadcast_async_ = broadcast_nonblocking_
