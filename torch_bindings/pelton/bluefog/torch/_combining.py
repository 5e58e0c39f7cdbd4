"""Tensors in flat buckets, and what an optimizer does with them between ranks."""

from __future__ import annotations

import enum
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Union

import torch
from torch._compile import _disable_dynamo

from pelton import _C
from pelton._training.data_parallel._steps import is_in_backward
from pelton._warn import warn
from pelton.bluefog._world import World
from pelton.bluefog.torch import _handles, mpi_ops
from pelton.bluefog.torch._basics import active_world
from pelton.bluefog.torch._handles import HANDLES
from pelton.bluefog.torch._weights import machine_table_of, table_of
from pelton.errors import InvalidArgument

_BUCKET_BYTES = 8 << 20  # BlueFog's threshold of fusion
_numbers = itertools.count()

Named = list[tuple[str, torch.Tensor]]
_Bucket = TypeVar("_Bucket")


class CommunicationType(enum.Enum):
    """What an optimizer combines weights with. It may change from step to step, on all ranks at once."""

    neighbor_allreduce = "neighbor.allreduce"
    hierarchical_neighbor_allreduce = "hierarchical.neighbor.allreduce"
    allreduce = "allreduce"
    empty = "empty"


@dataclass
class Knobs:
    """With whom and by which weights the next combination is; read when it begins. Threads: a value. Owns: nothing."""

    communication_type: CommunicationType = CommunicationType.neighbor_allreduce
    self_weight: Union[float, None] = None
    src_weights: Any = None
    dst_weights: Any = None
    src_machine_weights: Any = None
    dst_machine_weights: Any = None
    enable_topo_check: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "communication_type" and not isinstance(value, CommunicationType):
            raise InvalidArgument(f"communication_type: is {value!r}; must be a CommunicationType")
        super().__setattr__(name, value)


@dataclass
class FlatBucket:
    """Tensors of one dtype and device, one behind the other. Threads: the trainer's. Owns: nothing."""

    name: str
    parameters: list[torch.Tensor]

    def packed(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Copies of the tensors, flat."""
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """A flat tensor as tensors of the parameters' shapes."""
        pieces = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        return [piece.view(parameter.shape) for piece, parameter in zip(pieces, self.parameters)]

    def unpack(self, flat: torch.Tensor) -> None:
        """Gives the parameters the values of a flat tensor."""
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self.views(flat)):
                parameter.copy_(view)


class CombinedBucket:
    """Parameters of one dtype and device that lie in a flat buffer: on the CPU in shared memory, which neighbors read
    where it is, on a GPU in its own memory.

    What is combined is written to a second buffer, and the parameters' storages move there. Threads: the trainer's.
    Owns: both buffers, together with the storages that lie in them.
    """

    def __init__(self, name: str, parameters: list[torch.Tensor]) -> None:
        self.name = name
        self.parameters = parameters
        self._weights = _C.WeightBucket(parameters)
        self._handle: int | None = None

    def begin(self, knobs: Knobs, *, checks: bool) -> None:
        """Begins to combine the parameters as they are now."""
        kind = knobs.communication_type
        if kind is CommunicationType.empty:
            return
        if not self._weights.fits():  # since the optimizer was made the model was given another dtype or device
            self._weights = _C.WeightBucket(self.parameters)
        world = active_world()
        is_of_all = kind is CommunicationType.allreduce
        operation_kind = _handles.ALLREDUCE if is_of_all else _handles.NEIGHBOR_ALLREDUCE
        full = HANDLES.claim(operation_kind, self.name)
        operation = begin_combining(world, self.name, knobs, self._weights, checks and knobs.enable_topo_check)
        self._handle = HANDLES.add(operation_kind, operation, full, world.timeline)

    def take_handle(self) -> int | None:
        """The operation that was begun, for its one waiter; None if there is none."""
        handle, self._handle = self._handle, None
        return handle

    def adopt(self) -> None:
        """Gives the parameters what was combined, which has been waited for."""
        self._weights.adopt()


def begin_combining(world: World, name: str, knobs: Knobs, weights: _C.WeightBucket, checks: bool) -> _C.Handle:
    """Begins the operation that writes what is combined to the target of `weights`.

    Args:
      world: that is active.
      name: what ranks match by.
      knobs: with whom, by which weights.
      weights: what is sent.
      checks: whether all ranks first compare the ends of all edges.
    """
    flat, target = weights.gather(), weights.target
    queue = world.queue_of(flat)
    if knobs.communication_type is CommunicationType.allreduce:
        return queue.allreduce(flat, _handles.MEAN, False, name, target)
    if knobs.communication_type is CommunicationType.neighbor_allreduce:
        table = table_of(world, knobs.self_weight, knobs.src_weights, knobs.dst_weights, checks)
        return queue.neighbor_allreduce(flat, table, name, target)
    table = machine_table_of(world, knobs.self_weight, knobs.src_machine_weights, knobs.dst_machine_weights, checks)
    return queue.hierarchical_neighbor_allreduce(flat, table, world.local_queue_of(flat), name, target)


def buckets_of(kind: str, named: Named, make: Callable[[str, list[torch.Tensor]], _Bucket]) -> list[_Bucket]:
    """Parameters by dtype and device, in their order, up to 8 MiB together; named alike on all ranks that make them
    alike.
    """
    number = next(_numbers)
    buckets: list[_Bucket] = []
    of_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for _, parameter in named:
        of_kind.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for parameters in of_kind.values():
        rest = list(parameters)
        while rest:
            taken = _first(rest)
            buckets.append(make(f"{kind}.{number}.bucket.{len(buckets)}", rest[:taken]))
            rest = rest[taken:]
    return buckets


def _first(parameters: Iterable[torch.Tensor]) -> int:
    size = count = 0
    for parameter in parameters:
        size += parameter.nbytes
        if count > 0 and size > _BUCKET_BYTES:
            break
        count += 1
    return count


def combine(buckets: Sequence[CombinedBucket], knobs: Knobs) -> None:
    """Begins all of them; the first one's check of the topology is for all."""
    for i, bucket in enumerate(buckets):
        bucket.begin(knobs, checks=i == 0)


def finish(buckets: Sequence[CombinedBucket]) -> None:
    """Gives all parameters what was combined where something was begun, or none of them after an error (COMMIT-1).

    Blocks: until all operations have ended.

    Raises:
      PeltonError: the first operation's that has failed.
    """
    begun = [(bucket, handle) for bucket in buckets if (handle := bucket.take_handle()) is not None]
    HANDLES.wait_for_all([handle for _, handle in begun])
    for bucket, _ in begun:
        bucket.adopt()


def mean_of_gradients(buckets: Sequence[FlatBucket]) -> None:
    """Gives all parameters the mean of the ranks' gradients, where one that has none counts as 0; those that have none
    on any rank stay without. After an error all are as they were. Blocks: until they are there.

    Raises:
      PeltonError: the first operation's that has failed.
    """
    handles: list[int] = []
    for bucket in buckets:
        present = [parameter.grad is not None for parameter in bucket.parameters]
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in bucket.parameters]
        marks = torch.tensor(present, dtype=torch.float32)
        handles.append(mpi_ops.allreduce_nonblocking(bucket.packed(gradients), name=f"{bucket.name}.gradients"))
        handles.append(mpi_ops.allreduce_nonblocking(marks, average=False, name=f"{bucket.name}.marks"))
    results = iter(HANDLES.wait_for_all(handles))
    for bucket, flat, marks in zip(buckets, results, results):
        for parameter, mean, mark in zip(bucket.parameters, bucket.views(flat), marks.tolist()):
            if mark == 0:
                continue
            if parameter.grad is None:
                parameter.grad = mean.clone()
            else:
                with torch.no_grad():
                    parameter.grad.copy_(mean)


class Rhythm:
    """Counts a model's forward passes in training mode, and says when the J-th has come.

    A step before which no forward pass was seen counts as one, so that a model that is called past its hooks is
    combined all the same. Threads: the trainer's. Owns: its hooks.
    """

    def __init__(self, models: Sequence[torch.nn.Module], interval: int, due: weakref.WeakMethod[Any]) -> None:
        """Args:
        models: whose forward passes count; those of the first one, if there are several.
        interval: J.
        due: what is called when the J-th has begun; weak, because whoever owns this has it.
        """
        self._interval, self._due = interval, due
        self._count = 0
        self._since_step = 0
        self._without_graph = 0  # passes since the last step that a reentrant checkpoint may compute again
        self._is_synchronized = False  # since the last step
        self._has_warned = False
        self.is_due = False
        if models:
            hook = models[0].register_forward_pre_hook(_ForwardHook(self, models[0]))
            weakref.finalize(self, hook.remove)

    def note_forward(self, is_training: bool) -> None:
        """A forward pass begins.

        One within a backward pass is checkpointing's, and repeats an earlier one as often as somebody walks the graph.
        That one has counted, unless it ran without gradients, as a reentrant checkpoint's does: then this one counts.
        """
        if not is_training:
            return
        if not torch.is_grad_enabled():
            self._without_graph += not is_in_backward()
            return
        if is_in_backward():
            if self._without_graph == 0:
                return
            self._without_graph -= 1
        self._since_step += 1
        self._is_synchronized = False
        self._tick()

    def _tick(self) -> None:
        if self.is_due:
            if not self._has_warned:
                self._has_warned = True
                warn(
                    f"Unexpected behavior: a forward pass came after the {self._interval} of "
                    "num_steps_per_communication, and step() was not called; it takes part in no communication"
                )
            return
        if self._count + 1 < self._interval:
            self._count += 1
            return
        begin = self._due()
        assert begin is not None
        begin()  # where that fails, nothing has begun: the next pass is the J-th
        self._count, self.is_due = 0, True

    def before_step(self) -> bool:
        """Whether this step combines; not what `synchronize` has combined, unless forward passes came after it."""
        if self._since_step == 0 and not self._is_synchronized:
            self._tick()
        self._since_step = self._without_graph = 0
        self._is_synchronized = False
        due, self.is_due = self.is_due, False
        return due

    def note_synchronize(self) -> bool:
        """The same, of what is combined ahead of the step."""
        due = self.before_step()
        self._is_synchronized = True
        return due

    def note_own_step(self) -> None:
        """A step that combines nothing is over."""
        self._is_synchronized = False


class _ForwardHook:
    """Tells a rhythm of the forward passes of its own model.

    Copies of the model, and what is loaded from a file that it was saved to, have a hook that does nothing. Threads:
    the trainer's. Owns: nothing.
    """

    def __init__(self, rhythm: Rhythm, model: torch.nn.Module) -> None:
        # An optimizer that nobody holds any more must not communicate, and is not kept alive by its model.
        self._rhythm, self._model = weakref.ref(rhythm), weakref.ref(model)

    @_disable_dynamo  # as torch.compiler.disable, which would import the compiler now
    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        rhythm = self._rhythm()
        if rhythm is not None and module is self._model():
            rhythm.note_forward(module.training)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _hook_of_copies, ()


def _hook_of_copies() -> Callable[[torch.nn.Module, Any], None]:
    return _does_nothing


def _does_nothing(module: torch.nn.Module, inputs: Any) -> None:
    """For a copy of a model."""
