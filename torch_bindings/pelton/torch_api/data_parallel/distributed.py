"""The interface of torch's DistributedDataParallel, as of PyTorch 1.9, with Bagua's additions."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from pelton.errors import InvalidArgument, Unsupported
from pelton.torch_api import communication
from pelton.torch_api._packed import broadcast_packed
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from pelton.torch_api.communication import BaguaProcessGroup
from pelton.torch_api.data_parallel._attachment import attach, name_of
from pelton.torch_api.data_parallel.bagua_distributed import BaguaDistributedDataParallel

AnyGroup = Union[dist.ProcessGroup, BaguaProcessGroup, None]
_DEFAULT_ALGORITHM = GradientAllReduceAlgorithm()


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
        """Raises Unsupported."""
        raise _unsupported("join")

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Raises Unsupported: `algorithm` says how gradients are communicated."""
        raise _unsupported("register_comm_hook")


class DistributedDataParallel_V1_9_0(DistributedDataParallel_V1_9_0_Interface):  # noqa: N801  (Bagua's name)
    """A model that is trained together with the other ranks': it is `.module`, the machinery is `.inner`.

    Keys of `state_dict` begin with "module.", as torch's do. Parameters that a backward pass does not use need no
    flag: they count as zeros where another rank used them, and keep their gradient where no rank did.

    Threads: the trainer's. Owns: the wrapping; the module is the caller's.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        process_group: AnyGroup = None,
        bucket_cap_mb: int = 25,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = True,
        optimizers: Sequence[torch.optim.Optimizer] = [],
        algorithm: Algorithm = _DEFAULT_ALGORITHM,
    ) -> None:
        """As `DistributedDataParallel`, which is to be called instead.

        Raises:
          AssertionError: no parameter requires a gradient.
          ValueError: several devices are named, or the parameters are on devices of several types.
        """
        super().__init__()
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise AssertionError(f"{type(module).__name__} has no parameter that requires a gradient")
        if device_ids is not None and len(device_ids) > 1:
            raise InvalidArgument(f"device_ids={device_ids!r}: must be None or name one device")
        devices = {parameter.device for parameter in module.parameters()}
        kinds = sorted({device.type for device in devices})
        if len(kinds) != 1:
            raise InvalidArgument(f"module: its parameters are on devices of several types: {', '.join(kinds)}")
        self.module = module
        self.device = next(module.parameters()).device
        self.device_type = kinds[0]
        self.is_multi_device_module = len(devices) > 1
        self.static_graph = False
        self.dim = dim
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.require_forward_param_sync = True
        self.inner = BaguaDistributedDataParallel(
            module,
            optimizers,
            algorithm,
            to_bagua_process_group(process_group),
            bagua_module_name=name_of(module),
            gradient_as_bucket_view=gradient_as_bucket_view,
            find_unused_parameters=find_unused_parameters,
            predecessor=module.__dict__.get("bagua_ddp"),
        )
        attach(module, self.inner)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's forward pass; before it, with `broadcast_buffers`, buffers become those of rank 0."""
        if self.will_sync_module_buffers():
            self._broadcast_buffers()
        self.require_forward_param_sync = torch.is_grad_enabled() and self.require_backward_grad_sync
        return self.module(*inputs, **kwargs)

    def will_sync_module_buffers(self) -> bool:
        """Whether the next forward pass begins with a broadcast of the buffers, as torch's would: not after one inside
        `no_sync` or without gradients.
        """
        return self.require_forward_param_sync and self.broadcast_buffers and bool(self._buffers_to_broadcast())

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes within it only accumulate; the next one after it communicates the sum."""
        with self.inner.no_sync():
            yield

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether backward passes communicate; False inside `no_sync`."""
        return self.inner.require_backward_grad_sync

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

    def _buffers_to_broadcast(self) -> list[torch.Tensor]:
        ignored = set(self.parameters_to_ignore)
        return [buffer for name, buffer in self.module.named_buffers() if name not in ignored]

    def _broadcast_buffers(self) -> None:
        communicator = self.inner.process_group.get_global_communicator()
        broadcast_packed(communicator, self._buffers_to_broadcast(), 0)


def DistributedDataParallel(  # noqa: N802  (Bagua's name, and torch's)
    module: nn.Module,
    device_ids: Sequence[int | torch.device] | None = None,
    output_device: int | torch.device | None = None,
    dim: int = 0,
    broadcast_buffers: bool = True,
    process_group: AnyGroup = None,
    bucket_cap_mb: int = 25,
    find_unused_parameters: bool = False,
    check_reduction: bool = False,
    gradient_as_bucket_view: bool = True,
    optimizers: Sequence[torch.optim.Optimizer] = [],
    algorithm: Algorithm = _DEFAULT_ALGORITHM,
) -> TorchDistributedDataParallel | DistributedDataParallel_V1_9_0:
    """Wraps a model as torch's class does. Collective over the group.

    Args:
      module: the model.
      device_ids: see below.
      output_device: see below.
      dim: see below.
      broadcast_buffers: see below. Buffers become those of rank 0 before forward passes, as torch's do.
      process_group: the ranks that take part; None for all.
      bucket_cap_mb: accepted; BAGUA_DEFAULT_BUCKET_SIZE sets the size of buckets.
      find_unused_parameters: unused parameters are found in any case, and block nothing.
      check_reduction: see below.
      gradient_as_bucket_view: gradients may lie in the buckets.
      optimizers: what steps the model.
      algorithm: how it is kept together with the others.

    Returns:
      A `DistributedDataParallel_V1_9_0`; or, as in Bagua, torch's own wrapper, with a warning that names the argument,
      where device_ids, output_device, dim, broadcast_buffers or check_reduction is not the default. That one
      communicates through torch.distributed, which must be initialised, and knows neither `optimizers` nor `algorithm`.

    Raises:
      As `Module.with_bagua`, and AssertionError where no parameter requires a gradient.
    """
    given = {
        "device_ids": device_ids is not None,
        "output_device": output_device is not None,
        "dim": dim != 0,
        "broadcast_buffers": broadcast_buffers is not True,
        "check_reduction": check_reduction is not False,
    }
    if any(given.values()):
        names = ", ".join(name for name, is_given in given.items() if is_given)
        warnings.warn(
            f"DistributedDataParallel: {names} is not the default, so torch's own DistributedDataParallel wraps the "
            "model: it communicates through torch.distributed, and `algorithm` and `optimizers` have no effect",
            stacklevel=2,
        )
        if isinstance(process_group, BaguaProcessGroup):
            raise InvalidArgument("process_group: torch's DistributedDataParallel needs one of torch.distributed's")
        return TorchDistributedDataParallel(
            module,
            device_ids=device_ids,
            output_device=output_device,
            dim=dim,
            broadcast_buffers=broadcast_buffers,
            process_group=process_group,
            bucket_cap_mb=bucket_cap_mb,
            find_unused_parameters=find_unused_parameters,
            check_reduction=check_reduction,
            gradient_as_bucket_view=gradient_as_bucket_view,
        )
    return DistributedDataParallel_V1_9_0(
        module,
        process_group=process_group,
        bucket_cap_mb=bucket_cap_mb,
        find_unused_parameters=find_unused_parameters,
        gradient_as_bucket_view=gradient_as_bucket_view,
        optimizers=optimizers,
        algorithm=algorithm,
    )


def _unsupported(name: str) -> Unsupported:
    return Unsupported(f"DistributedDataParallel.{name}: not offered, as in Bagua")
