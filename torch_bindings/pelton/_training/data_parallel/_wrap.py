"""The one way in which a model is wrapped: `pelton.wrap` and `Module.with_bagua` both end here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import nn

from pelton._training._groups import AnyGroup, own_group
from pelton._training.algorithms.base import Algorithm
from pelton._training.data_parallel._attachment import attach, name_of, wrapping_of
from pelton._training.data_parallel.bagua_distributed import BaguaDistributedDataParallel
from pelton.errors import InvalidArgument

_Module = TypeVar("_Module", bound=nn.Module)


def wrap_module(
    module: _Module,
    optimizers: Iterable[torch.optim.Optimizer] | torch.optim.Optimizer,
    algorithm: Algorithm | str,
    process_group: AnyGroup = None,
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
        own_group(process_group),
        bagua_module_name=name_of(module),
        gradient_as_bucket_view=do_flatten,
        predecessor=wrapping_of(module),
    )
    attach(module, inner)
    return module
