"""Gradients that are a rank's own, because no round has communicated them yet: they outlive a registration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from pelton._training._parameters import NamedTensors, SelectedTensors, names_without_optimizer
from pelton._training._state_broadcast import agree_on, everyone, of_all_ranks
from pelton._training.communication import BaguaProcessGroup
from pelton._training.data_parallel._make_rounds import without_optimizer
from pelton._training.data_parallel._rounds import Rounds
from pelton._training.data_parallel._steps import ModelSteps
from pelton._training.data_parallel._user_algorithm import runtime_algorithm


@dataclass(frozen=True)
class Registered:
    """A registration of a model, which may be over. Threads: a value. Owns: references to its tensors."""

    group: BaguaProcessGroup
    selected: SelectedTensors
    rounds: Rounds
    steps: ModelSteps

    def common(self) -> set[int]:
        """Ids of the tensors whose gradients, where they have some, are the same on all ranks of the group."""
        local = set(self.rounds.local_gradients())
        if self.rounds.may_differ:  # an optimizer makes steps that differ by rank even of equal gradients
            local = {name for name, _ in self.selected.trainable}
        return {id(tensor) for name, tensor in self.selected.all if name not in local}


def local_gradients(named: NamedTensors, group: BaguaProcessGroup, last: Registered | None) -> list[str]:
    """Names of the parameters whose gradients are this rank's own: of all that have one, but for those that the rounds
    of the last registration have left the same on all ranks.

    Args:
      named: the parameters.
      group: the ranks that are to have the same.
      last: what is known of the model's gradients until now; None: nothing.
    """
    common = last.common() if last is not None and last.group is group else set()
    return [name for name, tensor in named if tensor.grad is not None and id(tensor) not in common]


def _of_this_model(inner: Any, frozen: NamedTensors) -> NamedTensors:
    """Those whose gradient may come from backward passes of this model, and not of another one that has them, too.

    At a first wrapping no passes are known. A parameter that none of the given optimizers steps may belong to a part
    that was trained before and is wrapped by itself later, which communicates its gradient then.
    """
    if inner._last is not None:
        before = {id(tensor) for _, tensor in inner._last.selected.trainable}
        return [(name, tensor) for name, tensor in frozen if id(tensor) in before]
    others = {id(tensor) for _, _, tensor in inner._session.communicated_by_others(inner)}
    unstepped = set(names_without_optimizer(frozen, inner.bagua_optimizers) if inner.bagua_optimizers else ())
    return [(name, tensor) for name, tensor in frozen if id(tensor) not in others and name not in unstepped]


def keep_local(inner: Any, selected: SelectedTensors) -> SelectedTensors:
    """Has frozen parameters take part for as long as a rank has a gradient of its own of them, because an optimizer
    steps by every gradient, also of what is frozen. Collective.

    Args:
      inner: the object behind the wrapped model, between two registrations.
      selected: its tensors, with the names of which all ranks agree.

    Returns:
      The same, where such parameters are among the trainable ones.

    Raises:
      InvalidArgument: the ranks have frozen different parameters.
    """
    communicator = inner.process_group.get_global_communicator()
    frozen = _of_this_model(inner, selected.frozen)
    local = set(local_gradients(frozen, inner.process_group, inner._last))
    local.difference_update(without_optimizer(runtime_algorithm(inner.bagua_algorithm), inner.bagua_optimizers, frozen))
    if everyone(communicator, not local):
        return selected
    names = [name for name, _ in selected.frozen]
    agree_on(communicator, "frozen parameters", names)
    is_kept = of_all_ranks(communicator, [name in local for name in names], torch.uint8).any(0).tolist()
    kept = [parameter for parameter, keeps in zip(selected.frozen, is_kept) if keeps]
    left = [parameter for parameter, keeps in zip(selected.frozen, is_kept) if not keeps]
    return replace(selected, trainable=selected.trainable + kept, frozen=left)
