"""Communication hooks for `torch.nn.parallel.DistributedDataParallel.register_comm_hook`.

All take a process group as their state, None for the default group, and average over its ranks. They work
over any backend of torch.distributed. `pelton_group` lets a model over another backend, gloo say, average its gradients
over Pelton:

    model = DistributedDataParallel(module)
    model.register_comm_hook(None, comm_hooks.allreduce_hook)
    model.register_comm_hook(comm_hooks.pelton_group(), comm_hooks.bf16_compress_hook)
"""

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # exported on a condition
    GradBucket,
    ProcessGroup,
)
from torch.futures import Future

from pelton import _C


def pelton_group(group: ProcessGroup | None = None) -> ProcessGroup:
    """A group of Pelton's with the members of `group`, whatever backend that has. Collective over the world.

    Args:
      group: None for the default group.

    Returns:
      A state for the hooks of this module.
    """
    made = dist.new_group(dist.get_process_group_ranks(group), backend="pelton")
    assert isinstance(made, ProcessGroup)
    return made


def allreduce_hook(state: ProcessGroup | None, bucket: GradBucket) -> Future[torch.Tensor]:
    """Averages a bucket: what DistributedDataParallel does without any hook."""
    return _averaged(state, bucket.buffer())


def fp16_compress_hook(state: ProcessGroup | None, bucket: GradBucket) -> Future[torch.Tensor]:
    """Averages a bucket as float16: half the bytes. Over Pelton the sum is taken in float32 and rounded once."""
    return _compressed(state, bucket, torch.float16)


def bf16_compress_hook(state: ProcessGroup | None, bucket: GradBucket) -> Future[torch.Tensor]:
    """The same as bfloat16, which keeps float32's range."""
    return _compressed(state, bucket, torch.bfloat16)


def _compressed(state: ProcessGroup | None, bucket: GradBucket, dtype: torch.dtype) -> Future[torch.Tensor]:
    buffer = bucket.buffer()

    def decompress(future: Future[torch.Tensor]) -> torch.Tensor:
        return buffer.copy_(future.value())

    return _averaged(state, buffer.to(dtype)).then(decompress)


def _averaged(state: ProcessGroup | None, buffer: torch.Tensor) -> Future[torch.Tensor]:
    """The mean over the ranks, in the buffer itself."""
    group = dist.group.WORLD if state is None else state
    assert group is not None
    if isinstance(group._get_backend(buffer.device), _C.ProcessGroup):  # whatever names the group's backends have
        return _reduced(group, buffer, dist.ReduceOp.AVG)
    # The other backends for the CPU have no mean, and float16 must not overflow in the sum.
    return _reduced(group, buffer.div_(group.size()), dist.ReduceOp.SUM)


def _reduced(group: ProcessGroup, buffer: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Future[torch.Tensor]:
    work = dist.all_reduce(buffer, op, group, async_op=True)
    assert work is not None
    averaged: Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
    return averaged
