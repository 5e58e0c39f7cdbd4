"""The one way in which a model is wrapped: `pelton.wrap` and `Module.with_bagua` both end here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from pelton._training import _session, communication
from pelton._training.algorithms.base import Algorithm
from pelton._training.communication import BaguaProcessGroup
from pelton._training.data_parallel._attachment import attach, name_of, wrapping_of
from pelton._training.data_parallel.bagua_distributed import BaguaDistributedDataParallel
from pelton.errors import InvalidArgument

_Module = TypeVar("_Module", bound=nn.Module)


def wrap_module(
    module: _Module,
    optimizers: Iterable[torch.optim.Optimizer] | torch.optim.Optimizer,
    algorithm: Algorithm | str,
    process_group: BaguaProcessGroup | dist.ProcessGroup | None = None,
    do_flatten: bool = True,
) -> _Module:
    """As `pelton.torch_api.distributed.BaguaModule.with_bagua`, of any module: returns it. Collective over the group.

    Args:
      module: the model.
      optimizers: what steps it.
      algorithm: how it is kept together with the other ranks', or the name of one with its default options.
      process_group: the ranks that take part; None for all.
      do_flatten: gradients may lie one after the other in the buckets.

    Raises:
      PeltonError: see there.
    """
    if not isinstance(module, nn.Module):
        raise InvalidArgument(f"model: must be a torch.nn.Module, is a {type(module).__name__}")
    inner = BaguaDistributedDataParallel(
        module,
        optimizers,
        algorithm,
        _checked_group(process_group),
        bagua_module_name=name_of(module),
        gradient_as_bucket_view=do_flatten,
        predecessor=wrapping_of(module),
    )
    attach(module, inner)
    return module


def _checked_group(group: BaguaProcessGroup | dist.ProcessGroup | None) -> BaguaProcessGroup:
    if group is None:
        return communication._get_default_group()
    if isinstance(group, dist.ProcessGroup):
        group = communication.from_torch_group(group)
    if not isinstance(group, BaguaProcessGroup):
        raise InvalidArgument(f"process_group: must be a BaguaProcessGroup or None, is {group!r}")
    rank = _session.current().backend.rank
    if rank not in group.ranks:
        raise InvalidArgument(f"process_group: this rank, {rank}, is not one of its ranks {group.ranks}")
    return group
