"""Gradients that are a rank's own, because no round has communicated them yet: they outlive a registration."""

from __future__ import annotations

import weakref
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


@dataclass(frozen=True)
class Sums:
    """Gradients that a wrapping which was detached has left as the ranks' sum: another one that communicated them would
    count them once for each rank. A mean does no harm, because it is the mean of itself.

    Threads: a value. Owns: references to parameters.
    """

    rounds: Rounds
    group: BaguaProcessGroup
    versions: list[tuple[torch.Tensor, weakref.ref[torch.Tensor], int]]  # parameter, gradient, its version

    def common(self) -> set[int]:
        """Ids of the parameters whose gradient nothing has written to, or replaced, since."""
        return {id(tensor) for tensor, left, version in self.versions if _is_still(tensor.grad, left(), version)}


def _is_still(gradient: torch.Tensor | None, left: torch.Tensor | None, version: int) -> bool:
    return gradient is not None and gradient is left and gradient._version == version


def leave_sums(inner: Any) -> None:
    """Remembers which gradients of a model that has just been detached are sums of the ranks.

    Args:
      inner: the object that was behind it.
    """
    last = inner._last
    if last is None or not last.rounds.sums:
        return
    common = last.common()
    parameters = [tensor for _, tensor in last.selected.trainable if id(tensor) in common]
    versions = [(p, weakref.ref(p.grad), p.grad._version) for p in parameters if p.grad is not None]
    inner._session.sums[inner.module] = Sums(last.rounds, last.group, versions)


def local_gradients(inner: Any, named: NamedTensors) -> list[str]:
    """Names of the parameters whose gradients are this rank's own: of all that have one, but for those that the rounds
    of the last registration, or of a wrapping that was detached, have left the same on all ranks.

    Args:
      inner: the object behind the wrapped model, between two registrations.
      named: the parameters.
    """
    known = [*([inner._last] if inner._last is not None else []), *inner._session.sums.values()]
    common = {number for before in known if before.group is inner.process_group for number in before.common()}
    return [name for name, tensor in named if tensor.grad is not None and id(tensor) not in common]


def hand_on(inner: Any, rounds: Rounds) -> None:
    """Has new rounds know which gradients are results of earlier ones.

    Args:
      inner: the object behind the wrapped model.
      rounds: its new ones.
    """
    if inner._last is not None:
        rounds.take_over(inner._last.rounds)
    for sums in inner._session.sums.values():
        if sums.group is inner.process_group:
            rounds.take_over(sums.rounds)


def _of_this_model(inner: Any, frozen: NamedTensors) -> NamedTensors:
    """Those whose gradient may come from backward passes of this model, and not of another one that has them, too.

    At a first wrapping no passes are known. A parameter that none of the given optimizers steps may belong to a part
    that was trained before and is wrapped by itself later, which communicates its gradient then.
    """
    if inner._last is not None:
        before = {id(tensor) for _, tensor in inner._last.selected.trainable}
        return [(name, tensor) for name, tensor in frozen if id(tensor) in before]
    others = {id(tensor) for _, _, tensor in inner._session.communicated_by_others(inner)}
    unstepped = names_without_optimizer(frozen, inner.bagua_optimizers) if inner.bagua_optimizers else []
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
    local = set(local_gradients(inner, frozen))
    local.difference_update(without_optimizer(runtime_algorithm(inner.bagua_algorithm), inner.bagua_optimizers, frozen))
    if everyone(communicator, not local):
        return selected
    names = [name for name, _ in selected.frozen]
    agree_on(communicator, "frozen parameters", names)
    is_kept = of_all_ranks(communicator, [name in local for name in names], torch.uint8).any(0).tolist()
    kept = [parameter for parameter, keeps in zip(selected.frozen, is_kept) if keeps]
    left = [parameter for parameter, keeps in zip(selected.frozen, is_kept) if not keeps]
    return replace(selected, trainable=selected.trainable + kept, frozen=left)
