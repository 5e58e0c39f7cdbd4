"""The interface of torch's DistributedDataParallel, as of PyTorch 1.9, with Bagua's additions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pelton._training import communication
from pelton._training._groups import AnyGroup, own_group
from pelton._training._packed import broadcast_packed
from pelton._training.algorithms.base import Algorithm
from pelton._training.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from pelton._training.communication import BaguaProcessGroup
from pelton._training.data_parallel._attachment import attach, name_of, wrapping_of
from pelton._training.data_parallel.bagua_distributed import BaguaDistributedDataParallel
from pelton._warn import warn
from pelton.errors import InvalidArgument, Unsupported

_DEFAULT_ALGORITHM = GradientAllReduceAlgorithm()
_NO_OPTIMIZERS: Iterable[torch.optim.Optimizer] = []  # a list, as Bagua's default is; nothing is added to it


NO_JOINING = (
    "uneven inputs are not evened out: a rank that has no batch left would leave the others waiting. Give all ranks "
    "equally many batches: by DataLoader(..., drop_last=True), or a DistributedSampler, which pads; or stop at the "
    "smallest count of all ranks, which allreduce(..., op=ReduceOp.MIN) tells"
)


class _LeftOut(int):
    """A number that a signature shows where the argument may be left out. Threads: a value. Owns: nothing."""


_BAGUAS_BUCKET_CAP_MB = _LeftOut(25)


def to_bagua_process_group(process_group: AnyGroup = None) -> BaguaProcessGroup:
    """The group of the same ranks; None stands for all of them.

    Args:
      process_group: one of torch's or of ours.

    Raises:
      InvalidArgument: it is neither.
    """
    if process_group is None:
        return communication._get_default_group()
    if isinstance(process_group, BaguaProcessGroup):
        return process_group
    if isinstance(process_group, dist.ProcessGroup):
        return communication.from_torch_group(process_group)
    raise InvalidArgument(f"process_group: must be a group of torch's or ours, or None; is {process_group!r}")


class DistributedDataParallel_V1_9_0_Interface(nn.Module):  # noqa: N801  (Bagua's name)
    """What torch's class has and this one does not offer. Threads: the trainer's. Owns: nothing."""

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        """Raises Unsupported."""
        raise _unsupported("scatter")

    def to_kwargs(self, inputs: Any, kwargs: Any, device_id: Any) -> Any:
        """Raises Unsupported."""
        raise _unsupported("to_kwargs")

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """Raises Unsupported."""
        raise _unsupported("gather")

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Any:
        """Raises Unsupported; the text says what to do instead."""
        raise Unsupported(f"DistributedDataParallel.join: {NO_JOINING}")

    def join_hook(self, **kwargs: Any) -> Any:
        """As `join`, of torch's `Join`."""
        raise Unsupported(f"DistributedDataParallel in Join: {NO_JOINING}")

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Raises Unsupported: `algorithm` says how gradients are communicated."""
        raise Unsupported(
            "DistributedDataParallel.register_comm_hook: not offered; the argument `algorithm` says how gradients are "
            "communicated ('bytegrad', 'power_sgd', or one of your own); torch's class over Pelton's takes hooks"
        )


class DistributedDataParallel_V1_9_0(DistributedDataParallel_V1_9_0_Interface):  # noqa: N801  (Bagua's name)
    """A model that is trained together with the other ranks': it is `.module`, the machinery is `.inner`.

    Keys of `state_dict` begin with "module.", as torch's do. Parameters that a backward pass does not use need no
    flag: they count as zeros where another rank used them, and keep their gradient where no rank did.

    A copy (deepcopy, pickle) has no machinery: its `.inner` is None, and it trains as its `.module` alone would.

    Threads: the trainer's. Owns: the wrapping; the module is the caller's.
    """

    _has_told_of_copy = False

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        process_group: AnyGroup = None,
        bucket_cap_mb: float | None = _BAGUAS_BUCKET_CAP_MB,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = True,
        optimizers: Iterable[torch.optim.Optimizer] | torch.optim.Optimizer = _NO_OPTIMIZERS,
        algorithm: Algorithm | str = _DEFAULT_ALGORITHM,
        static_graph: bool = False,
    ) -> None:
        """Collective over the group.

        Args:
          module: the model.
          device_ids: None, or the module's GPU alone.
          output_device: the same.
          dim: 0, of which torch's makes use with several devices only.
          broadcast_buffers: buffers become those of rank 0 before forward passes, as torch's do.
          process_group: the ranks that take part; None for all.
          bucket_cap_mb: size up to which tensors share a bucket. None, or left out (the number that the signature shows
            is Bagua's and torch's): BAGUA_DEFAULT_BUCKET_SIZE says. Units: MiB.
          find_unused_parameters: accepted: unused parameters are found in any case, and block nothing.
          check_reduction: accepted, without effect, as in torch's.
          gradient_as_bucket_view: gradients may lie in the buckets.
          optimizers: what steps the model; one stands for a list of it.
          algorithm: how it is kept together with the others; a name stands for it with its default options.
          static_graph: accepted: nothing is assumed that it would have to promise.

        Raises:
          AssertionError: no parameter requires a gradient.
          InvalidArgument: a device is named that is not the module's, or its parameters are on several; and as
            `Module.with_bagua`.
        """
        super().__init__()
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise AssertionError(f"{type(module).__name__} has no parameter that requires a gradient")
        if dim != 0:
            raise InvalidArgument(f"dim={dim!r}: must be 0: batches are not split over devices of one process")
        self.device = _checked_device(module, device_ids, output_device)
        self.device_ids = [self.device.index] if device_ids else None
        self.device_type = self.device.type
        self.module = module
        self.is_multi_device_module = False
        self.static_graph = static_graph
        self.dim = dim
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.require_forward_param_sync = True
        self._has_said = False
        self._wrapped_by = BaguaDistributedDataParallel(
            module,
            optimizers,
            algorithm,
            own_group(process_group),
            bagua_module_name=name_of(module),
            gradient_as_bucket_view=gradient_as_bucket_view,
            find_unused_parameters=find_unused_parameters,
            predecessor=wrapping_of(module),
            bucket_bytes=_bytes_of(bucket_cap_mb),
        )
        attach(module, self._wrapped_by)

    @property
    def inner(self) -> BaguaDistributedDataParallel:
        """What keeps the module's ranks together: that of the last wrapping, if it was wrapped again since."""
        return wrapping_of(self.module) or self._wrapped_by

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's forward pass; before it, with `broadcast_buffers`, buffers become those of rank 0."""
        if self._is_copy():
            self._tell_of_copy()
            return self.module(*inputs, **kwargs)
        if self.will_sync_module_buffers():
            self._broadcast_buffers()
        self.require_forward_param_sync = torch.is_grad_enabled() and self.require_backward_grad_sync
        return self.module(*inputs, **kwargs)

    def will_sync_module_buffers(self) -> bool:
        """Whether the next forward pass begins with a broadcast of the buffers, as torch's would: not after one inside
        `no_sync` or without gradients.
        """
        if self._is_copy():
            return False
        if not (self.require_forward_param_sync and self.broadcast_buffers and self._buffers_to_broadcast()):
            return False
        if self.inner._rounds is not None and self.inner._rounds.runs_apart:
            self._say_that_buffers_differ()
            return False
        return True

    def _say_that_buffers_differ(self) -> None:
        """Once: a broadcast before each forward pass would keep ranks in step that are to run apart."""
        if not self._has_said:
            self._has_said = True
            warn(
                f"{name_of(self.module)}: buffers stay each rank's own, because {type(self.bagua_algorithm).__name__} "
                "lets ranks run apart; inner.consolidate() brings them together at the end"
            )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes within it only accumulate; the next one after it communicates the sum."""
        with contextlib.nullcontext() if self._is_copy() else self.inner.no_sync():
            yield

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether backward passes communicate; False inside `no_sync`, and of a copy."""
        return not self._is_copy() and self.inner.require_backward_grad_sync

    @property
    def parameters_to_ignore(self) -> list[str]:
        """Names of the module's parameters and buffers that stay each rank's own."""
        return self.inner.parameters_to_ignore

    @property
    def bagua_algorithm(self) -> Any:
        """The algorithm at work on the model."""
        return self.inner.bagua_algorithm

    @property
    def bagua_optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that were given."""
        return self.inner.bagua_optimizers

    @property
    def bagua_buckets(self) -> list[Any]:
        """The buckets in the order in which they are communicated."""
        return self.inner.bagua_buckets

    def _is_copy(self) -> bool:
        return self.inner is None  # what the machinery becomes in a copy

    def _tell_of_copy(self) -> None:
        """Once, where it is trained: a copy of torch's class would go on averaging."""
        if self._has_told_of_copy or not (self.training and torch.is_grad_enabled()):
            return
        self._has_told_of_copy = True
        if any(parameter.requires_grad for parameter in self.parameters()):
            warn(
                f"{type(self.module).__name__}: this DistributedDataParallel is a copy, whose gradients are each "
                "rank's own; to train it together with the other ranks', wrap its .module on all of them"
            )

    def _buffers_to_broadcast(self) -> list[torch.Tensor]:
        ignored = set(self.parameters_to_ignore)
        return [buffer for name, buffer in self.module.named_buffers() if name not in ignored]

    def _broadcast_buffers(self) -> None:
        communicator = self.inner.process_group.get_global_communicator()
        broadcast_packed(communicator, self._buffers_to_broadcast(), 0)


class DistributedDataParallel(DistributedDataParallel_V1_9_0):
    """Wraps a model as torch's class of this name does, with `optimizers` and `algorithm` beside its arguments.

    Threads, Owns: as its base.
    """


def _bytes_of(bucket_cap_mb: float | None) -> int | None:
    if bucket_cap_mb is None or isinstance(bucket_cap_mb, _LeftOut):
        return None
    return max(1, int(bucket_cap_mb * (1 << 20)))


def _checked_device(
    module: nn.Module, device_ids: Sequence[int | torch.device] | None, output_device: int | torch.device | None
) -> torch.device:
    """The one device of a module's parameters, which is what the arguments may name."""
    devices = {parameter.device for parameter in module.parameters()}
    if len(devices) != 1:
        names = ", ".join(sorted(str(device) for device in devices))
        raise InvalidArgument(f"module: its parameters are on devices of several kinds or numbers: {names}")
    (device,) = devices
    if device_ids is not None and len(device_ids) > 1:
        raise InvalidArgument(f"device_ids={list(device_ids)!r}: must be None or name one device, that of the module")
    named = {"device_ids": device_ids[0] if device_ids else None, "output_device": output_device}
    for argument, value in named.items():
        if value is None:
            continue
        wanted = torch.device(device.type, value) if isinstance(value, int) else torch.device(value)
        if device.type == "cpu" or (wanted.type, wanted.index or 0) != (device.type, device.index or 0):
            raise InvalidArgument(
                f"{argument}: names {value!r}, but the module is on {device}; leave it out, or move the module there"
            )
    return device


def _unsupported(name: str) -> Unsupported:
    return Unsupported(f"DistributedDataParallel.{name}: not offered: each process has one device")
