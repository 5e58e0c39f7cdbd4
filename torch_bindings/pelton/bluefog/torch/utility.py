"""Brings ranks to one state: parameters and optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Union

import torch
from torch.utils._pytree import tree_map

from pelton._training._objects import broadcast_object
from pelton.bluefog._errors import WrongType
from pelton.bluefog.torch._basics import active_world
from pelton.bluefog.torch._calls import root_of
from pelton.bluefog.torch.mpi_ops import allreduce_nonblocking_, broadcast_nonblocking_, synchronize
from pelton.errors import InvalidArgument

Parameters = Union[Mapping[str, Any], Iterable[torch.Tensor], Iterable[tuple[str, torch.Tensor]]]


def broadcast_parameters(params: Parameters, root_rank: int) -> None:
    """Gives all ranks the values of one. Collective.

    Args:
      params: a model's state_dict(), parameters() or named_parameters(), or a list of such; a generator will do. What
        is no tensor is left out.
      root_rank: whose values all get.

    Raises:
      InvalidArgument: it is none of these; ranks' tensors differ; there is no such rank.
    """
    handles = [broadcast_nonblocking_(tensor, root_rank) for tensor in _tensors_of(params)]
    for handle in handles:
        synchronize(handle)


def allreduce_parameters(params: Parameters) -> None:
    """Gives all ranks the mean of their values. Collective.

    Args:
      params: as `broadcast_parameters`. Whole numbers, as those of BatchNorm's counters, keep their values.

    Raises:
      InvalidArgument: it is none of these; ranks' tensors differ.
    """
    floating = [tensor for tensor in _tensors_of(params) if tensor.is_floating_point() or tensor.is_complex()]
    handles = [allreduce_nonblocking_(tensor) for tensor in floating]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Gives all ranks one's state and hyper-parameters, also where a rank has none yet. Collective.

    Args:
      optimizer: with the same parameters on all ranks.
      root_rank: whose state all get.

    Raises:
      WrongType: it is no optimizer, or `root_rank` no number.
      InvalidArgument: it is LBFGS; the state holds what cannot be sent; there is no such rank.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgument("optimizer: LBFGS keeps state that cannot be broadcast; use another optimizer")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WrongType(f"optimizer is of type {type(optimizer).__name__}; must be a torch.optim.Optimizer")
    root = root_of("broadcast_optimizer_state", root_rank)
    world = active_world()
    is_root = world.rank == root
    state = broadcast_object(tree_map(_on_the_host, optimizer.state_dict()) if is_root else None, root)
    if not is_root:
        _place_groups(state["param_groups"], optimizer.param_groups)
        optimizer.load_state_dict(state)


def _on_the_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _place_groups(groups: list[dict[str, Any]], mine: list[dict[str, Any]]) -> None:
    """Brings tensors among hyper-parameters, as a learning rate, to the device of this rank's own.

    What is kept for a parameter, `load_state_dict` brings to that parameter's.
    """
    for group, own in zip(groups, mine):
        for name, value in group.items():
            if isinstance(value, torch.Tensor) and isinstance(own.get(name), torch.Tensor):
                group[name] = value.to(own[name].device)


def _tensors_of(params: Parameters) -> list[torch.Tensor]:
    """Those of a dict in the order of their names."""
    items: list[Any]
    if isinstance(params, Mapping):
        items = [value for _, value in sorted(params.items()) if isinstance(value, torch.Tensor)]
    elif isinstance(params, Iterable) and not isinstance(params, (str, torch.Tensor)):
        items = [item[1] if isinstance(item, tuple) and len(item) == 2 else item for item in params]
        items = [item for item in items if item is not None]
    else:
        raise InvalidArgument(
            f"params: is a {type(params).__name__}; must be a dict, or a list or generator of tensors"
        )
    for item in items:
        if not isinstance(item, torch.Tensor):
            raise InvalidArgument(
                f"params: holds a {type(item).__name__}; must hold tensors, or pairs of name and tensor"
            )
    return items
