"""Collectives that autograd differentiates through."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from pelton._training import communication
from pelton._training._arguments import AnyReduceOp, ReduceOp, check_tensor, reduce_code
from pelton._training._groups import AnyGroup
from pelton._training.data_parallel.distributed import to_bagua_process_group
from pelton.errors import Unsupported

__all__ = ["ReduceOp", "all_reduce", "torch_reduce_op_to_bagua"]


class _World:
    """Stands for all ranks: torch's own word for them is bound only once torch.distributed is initialised."""

    def __repr__(self) -> str:
        return "dist.group.WORLD"


_WORLD: Any = _World()


def torch_reduce_op_to_bagua(op: AnyReduceOp) -> ReduceOp:
    """Bagua's code of a reduction.

    Args:
      op: one of torch's or of ours.

    Raises:
      InvalidArgument: it is none, or one that the runtime does not know.
    """
    return ReduceOp(reduce_code(op))


def all_reduce(
    tensor: torch.Tensor, op: AnyReduceOp = dist.ReduceOp.SUM, group: AnyGroup | _World = _WORLD
) -> torch.Tensor:
    """Combines the ranks' tensors into a new one, through which gradients flow. Collective, as its backward pass is.

    With y = op(x_0, ..., x_{n-1}) on every rank, and g_r the gradient of y on rank r, x's gradient is, everywhere,
    - SUM: g_0 + ... + g_{n-1}; AVG: that, divided by n: those of the sum of all ranks' losses;
    - MIN: g_0 + ... + g_{n-1} on the rank that has the smallest element, in equal parts where several have, else 0;
    - MAX: the largest of the g_r. So Bagua and torch define it; it is no derivative.

    Args:
      tensor: this rank's contribution.
      op: SUM, AVG, MIN or MAX, of torch's or of ours.
      group: the ranks that take part; all of them by default or if None.

    Shape: that of `tensor`.

    Raises:
      Unsupported: another reduction, whose gradient is not that simple.
      InvalidArgument: an argument is wrong, or differs between ranks.
    """
    code = torch_reduce_op_to_bagua(op)
    if code not in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX):
        raise Unsupported(f"op={code.name}: has no gradient here; SUM, AVG, MIN and MAX have")
    check_tensor(tensor, "tensor")
    bagua_group = to_bagua_process_group(None if isinstance(group, _World) else group)
    return _all_reduce(tensor, code, bagua_group.get_global_communicator())


def _all_reduce(tensor: torch.Tensor, op: ReduceOp, communicator: Any) -> torch.Tensor:
    result: torch.Tensor = _AllReduce.apply(tensor, op, communicator)  # type: ignore[no-untyped-call]
    return result


def _reduced(tensor: torch.Tensor, op: ReduceOp, communicator: Any) -> torch.Tensor:
    result = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    communication.allreduce(tensor.contiguous(), result, op, communicator)
    return result


class _AllReduce(torch.autograd.Function):
    """The reduction and its gradient. Threads: autograd's. Owns: nothing."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, op: ReduceOp, communicator: Any) -> torch.Tensor:
        result = _reduced(tensor.detach(), op, communicator)
        context.op, context.communicator = op, communicator
        context.save_for_backward(*((tensor.detach(), result) if op is ReduceOp.MIN else ()))
        return result

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        if context.op is not ReduceOp.MIN:
            return _all_reduce(gradient, context.op, context.communicator), None, None
        tensor, result = context.saved_tensors
        total = _reduced(gradient, ReduceOp.SUM, context.communicator)
        is_smallest = (tensor == result).to(gradient.dtype)
        count = _reduced(is_smallest, ReduceOp.SUM, context.communicator)
        return total * is_smallest / count, None, None
