"""Optimizers of a model with experts on ranks other than those that saved them: its states are found by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from pelton._training.checkpoint._entries import mean_of
from pelton._training.checkpoint._experts import LocalExperts
from pelton.errors import InvalidArgument

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
    *,
    takes_means: bool,
) -> list[dict[str, Any]]:
    """State_dicts for this rank's optimizers: of experts what their ranks have saved, of the rest what rank 0 has.

    Args:
      optimizers: this rank's.
      mine: their parameters' names.
      saved_by: how many ranks saved.
      read: gives the names and the state_dicts that a rank has saved.
      takes_means: of the rest the mean over the ranks, as of weights.

    Raises:
      InvalidArgument: there were more or fewer optimizers, groups of parameters, or parameters outside the model.
    """
    wanted = [_keys(names) for names in mine]
    found: list[dict[str, list[Any]]] = [{} for _ in optimizers]  # of each rank that has it
    groups: list[list[dict[str, Any]]] = []
    for rank in range(saved_by):
        names, states = read(rank)
        if len(states) != len(optimizers):
            raise InvalidArgument(f"optimizer: {len(states)} were saved, {len(optimizers)} are given")
        if rank == 0:
            groups = [state["param_groups"] for state in states]
        for i, state in enumerate(states):
            _check_outsiders(names[i], mine[i])
            for j, key in enumerate(_keys(names[i])):
                if key in wanted[i] and state["state"].get(j):
                    found[i].setdefault(key, []).append(state["state"][j])
    choose = mean_of if takes_means else _first
    return [_of(o, groups[i], wanted[i], found[i], choose) for i, o in enumerate(optimizers)]


def _keys(names: Sequence[str | None]) -> list[str]:
    """The parameters' names; what is not of the model is known by its place among those that are not."""
    outsiders = itertools.count()
    return [f" {next(outsiders)}" if name is None else name for name in names]


def _check_outsiders(saved: Sequence[str | None], given: Sequence[str | None]) -> None:
    if list(saved).count(None) != list(given).count(None):
        raise InvalidArgument(
            f"optimizer: {list(saved).count(None)} parameters that are not the model's were saved, these are "
            f"{list(given).count(None)}; only as many can be told apart, by their order"
        )


def _first(values: Sequence[Any]) -> Any:
    return values[0]


def _of(
    optimizer: Any,
    groups: list[dict[str, Any]],
    keys: Sequence[str],
    found: dict[str, list[Any]],
    choose: Callable[[Sequence[Any]], Any],
) -> dict[str, Any]:
    own = optimizer.state_dict()["param_groups"]
    if len(own) != len(groups):
        raise InvalidArgument(f"optimizer: {len(groups)} groups of parameters were saved, these are {len(own)}")
    return {
        "state": {j: choose(found[key]) for j, key in enumerate(keys) if key in found},
        "param_groups": [{**theirs, "params": mine["params"]} for theirs, mine in zip(groups, own)],
    }
