"""How BlueFog's collectives call the runtime: on which queue, and with what around it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Union

import torch

from pelton import _C
from pelton.bluefog._errors import NoMean, WrongType
from pelton.bluefog._names import NAMES
from pelton.bluefog._timeline import now_us
from pelton.bluefog._world import World
from pelton.bluefog.torch import _handles
from pelton.bluefog.torch._basics import active_world
from pelton.bluefog.torch._handles import HANDLES, Kind
from pelton.errors import DeadlineExceeded, InvalidArgument

_MEANS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


def begin_allreduce(
    tensor: torch.Tensor, average: bool, is_hierarchical_local: bool | str, name: str | None, in_place: bool
) -> int:
    """Begins the reduction of `mpi_ops.allreduce`, whose arguments these are; its handle.

    Args:
      tensor: as there.
      average: as there.
      is_hierarchical_local: as there.
      name: as there.
      in_place: whether the tensor receives the result.
    """
    reduction = _reduction(tensor, average, is_hierarchical_local, name)
    full = HANDLES.claim(_handles.ALLREDUCE, reduction.name)
    operation = reduction.queue.allreduce(reduction.tensor, reduction.op, in_place, reduction.name)
    is_there = reduction.tensor is tensor
    finish = None if is_there else lambda result: _brought_back(result, tensor, in_place)
    return HANDLES.add(_handles.ALLREDUCE, operation, full, reduction.world.timeline, finish)


def allreduce_now(
    tensor: torch.Tensor, average: bool, is_hierarchical_local: bool | str, name: str | None, in_place: bool
) -> torch.Tensor:
    """The same, waited for.

    Args:
      tensor: as there.
      average: as there.
      is_hierarchical_local: as there.
      name: as there.
      in_place: as there.
    """
    world, queue, there, op, name = _reduction(tensor, average, is_hierarchical_local, name)
    result = now(world, _handles.ALLREDUCE, name, queue.allreduce_now, there, op, in_place, name)
    return result if there is tensor else _brought_back(result, tensor, in_place)


class _Reduction(NamedTuple):
    """An allreduce as the runtime is asked for it. Threads: a value. Owns: nothing."""

    world: World
    queue: _C.Queue
    tensor: torch.Tensor
    op: int
    name: Union[str, None]


def _reduction(tensor: torch.Tensor, average: bool, is_hierarchical_local: bool | str, name: str | None) -> _Reduction:
    if isinstance(is_hierarchical_local, str):  # allreduce(tensor, average, name) of BlueFog 0.2
        name, is_hierarchical_local = is_hierarchical_local, False
    check_tensor("allreduce", tensor)
    if average and tensor.dtype not in _MEANS:
        raise NoMean(f"average=True: {tensor.dtype} has no mean; pass average=False for the sum")
    world = active_world()
    there = _where_reduced(tensor)
    queue = world.local_queue_of(there) if is_hierarchical_local else world.queue_of(there)
    return _Reduction(world, queue, there, _handles.MEAN if average else _handles.SUM, name)


def check_tensor(operation: str, tensor: Any) -> None:
    """Whether an operation was given a tensor.

    Args:
      operation: its name.
      tensor: its argument of that name.

    Raises:
      WrongType: it is something else.
    """
    if not isinstance(tensor, torch.Tensor):
        raise WrongType(f"{operation}: tensor is of type {type(tensor).__name__}; must be a torch.Tensor")


def root_of(operation: str, root_rank: Any) -> int:
    """The rank whose values all get.

    Args:
      operation: its name.
      root_rank: its argument of that name, also a whole number of NumPy's.

    Raises:
      WrongType: it is no whole number.
    """
    try:
        return operator.index(root_rank)
    except TypeError:
        raise WrongType(
            f"{operation}: root_rank={root_rank!r} is of type {type(root_rank).__name__}; must be a rank"
        ) from None


def _where_reduced(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its copy on the CPU where it is on a GPU and of a type that NCCL does not reduce."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_cpu or tensor.dtype is not torch.int16:
        return tensor
    return tensor.detach().cpu()


def _brought_back(result: torch.Tensor, tensor: torch.Tensor, in_place: bool) -> torch.Tensor:
    """What was reduced on the CPU, on the tensor's own device."""
    if not in_place:
        return result.to(tensor.device)
    with torch.no_grad():
        return tensor.copy_(result)


def now(world: World, kind: Kind, name: str | None, call: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
    """The result of a blocking call into the runtime.

    Args:
      world: that is active.
      kind: of the operation.
      name: of the operation.
      call: of a queue.
      arguments: its.
    """
    full = None if name is None else HANDLES.claim(kind, name)
    row, begin_us = full or f"{kind.prefix}.noname", 0.0
    if world.timeline is not None:
        begin_us = now_us()
        world.timeline.span(row, f"ENQUEUE_{kind.label}", begin_us)
    try:
        return call(*arguments)
    except (InvalidArgument, DeadlineExceeded) as error:
        raise NAMES.explain(error) from None
    finally:
        if world.timeline is not None:
            _handles.show(world.timeline, row, kind, begin_us)


def host_of(world: World, queue: _C.Queue) -> _C.Queue | None:
    """Where ranks that gather tensors of a GPU tell each other their shapes; None for tensors of the CPU.

    Args:
      world: that is active.
      queue: of the tensors.
    """
    return None if queue is world.queue else world.queue
