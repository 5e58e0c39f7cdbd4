"""Optimizers of a model with experts on ranks other than those that saved them: its states are found by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from pelton.errors import InvalidArgument
from pelton.torch_api.checkpoint._experts import LocalExperts

Names = list[list["str | None"]]  # by optimizer and the parameter's number in it; None: not of the model


def names_in(optimizers: Sequence[Any], model: nn.Module, local: LocalExperts) -> Names:
    """What the optimizers' parameters are called, experts by their numbers among those of all ranks."""
    known = {id(parameter): local.globalized(name) for name, parameter in model.named_parameters()}
    return [
        [known.get(id(parameter)) for group in optimizer.param_groups for parameter in group["params"]]
        for optimizer in optimizers
    ]


def moved(
    optimizers: Sequence[Any],
    mine: Names,
    saved_by: int,
    read: Callable[[int], tuple[Names, list[dict[str, Any]]]],
) -> list[dict[str, Any]]:
    """State_dicts for this rank's optimizers: of experts what their ranks have saved, of the rest what rank 0 has.

    Args:
      optimizers: this rank's.
      mine: their parameters' names.
      saved_by: how many ranks saved.
      read: gives the names and the state_dicts that a rank has saved.

    Raises:
      InvalidArgument: there were more or fewer optimizers, or groups of parameters.
    """
    found: list[dict[str, Any]] = [{} for _ in optimizers]
    groups: list[list[dict[str, Any]]] = []
    for rank in range(saved_by):
        names, states = read(rank)
        if len(states) != len(optimizers):
            raise InvalidArgument(f"optimizer: {len(states)} were saved, {len(optimizers)} are given")
        if rank == 0:
            groups = [state["param_groups"] for state in states]
        for i, state in enumerate(states):
            wanted = set(mine[i]) - set(found[i])
            new = {n: state["state"].get(j) for j, n in enumerate(names[i]) if n is not None and n in wanted}
            found[i].update(new)
    return [_of(o, groups[i], mine[i], found[i]) for i, o in enumerate(optimizers)]


def _of(
    optimizer: Any, groups: list[dict[str, Any]], names: Sequence[str | None], found: dict[str, Any]
) -> dict[str, Any]:
    own = optimizer.state_dict()["param_groups"]
    if len(own) != len(groups):
        raise InvalidArgument(f"optimizer: {len(groups)} groups of parameters were saved, these are {len(own)}")
    return {
        "state": {j: found[name] for j, name in enumerate(names) if name is not None and found.get(name)},
        "param_groups": [{**theirs, "params": mine["params"]} for theirs, mine in zip(groups, own)],
    }
