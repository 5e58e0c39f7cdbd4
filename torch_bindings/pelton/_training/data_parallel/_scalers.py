"""Stands around `GradScaler.step`: hears of steps that a scaler skips, and has ranks that must stay equal agree."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState

from pelton import _C
from pelton._training._parameters import SelectedTensors, parameter_ids
from pelton._training._state_broadcast import everyone, of_all_ranks
from pelton.errors import FailedPrecondition

# The scalers whose `step` is under way, each with the optimizers that have begun a step within it.
_under_way: list[tuple[Any, list[Any]]] = []


def note_step(optimizer: Any) -> None:
    """An optimizer, any one, begins a step."""
    for _, begun in _under_way:
        begun.append(optimizer)


def watch_scalers(before: Callable[[Any, Any], None], skipped: Callable[[Any], None]) -> Callable[[], None]:
    """Hears of steps that a gradient scaler skips; torch has hooks for steps that are taken only.

    Args:
      before: is told the scaler and what it is asked to step, before the scaler has looked for an overflow.
      skipped: is told what a scaler did not step, because of an overflow.

    Returns:
      what takes it back.
    """
    scalers: Any = GradScaler
    original = scalers.step

    @functools.wraps(original)
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        # Where somebody has wrapped one of ours that was there before, that one is called within this one.
        if not scaler.is_enabled() or any(scaler is other for other, _ in _under_way):
            return original(scaler, optimizer, *args, **kwargs)
        before(scaler, optimizer)
        begun: list[Any] = []
        _under_way.append((scaler, begun))
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        finally:
            _under_way.pop()
        if not begun and _overflow(scaler, optimizer):
            skipped(optimizer)
        return result

    def take_back() -> None:
        if scalers.step is step:  # else somebody has wrapped it since, and ours tells nobody from now on
            scalers.step = original

    scalers.step = step
    return take_back


def _overflow(scaler: Any, optimizer: Any) -> bool:
    """Whether the scaler has found one among the optimizer's gradients on this rank; waits for the device."""
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return any(bool(flag.item()) for flag in found.values())


class ScalerAgreement:
    """Has the ranks of a model whose weights are equal on all of them skip steps together, at one scale.

    Averaged gradients overflow on all ranks alike, so that their scalers agree by themselves; gradients of parameters
    that are left to their rank do not, and neither do scalers that come from a time of other rules. Threads: the
    trainer's. Owns: references to the scalers that it has compared.
    """

    def __init__(self, model: str, communicator: _C.Communicator, selected: SelectedTensors) -> None:
        """Args:
        model: its name in errors.
        communicator: of the ranks that take part.
        selected: the model's tensors.
        """
        self._model = model
        self._communicator = communicator
        self._communicated = frozenset(id(tensor) for _, tensor in selected.trainable)
        self._left_out = selected.left_out
        self._compared: weakref.WeakSet[GradScaler] = weakref.WeakSet()

    def before_step(self, scaler: Any, optimizer: Any) -> None:
        """A scaler is asked to step an optimizer, any one. Collective where that steps parameters of the model's, at
        the scaler's first such step or if some of those are left to their rank.

        Args:
          scaler: the scaler; it is enabled.
          optimizer: what it is to step.

        Raises:
          FailedPrecondition: the scaler's state differs between ranks. Raised on all of them.
        """
        if not self._left_out and scaler in self._compared:
            return
        held = parameter_ids(optimizer)
        is_left_out = not held.isdisjoint(self._left_out)
        if not is_left_out and held.isdisjoint(self._communicated):
            return
        stage = scaler._per_optimizer_states[id(optimizer)]["stage"]
        if scaler._scale is None or stage is OptState.STEPPED:
            return  # torch's error comes, on all ranks
        if scaler not in self._compared:
            self._compare(scaler, optimizer)
            self._compared.add(scaler)
        if is_left_out:
            if stage is OptState.READY:
                scaler.unscale_(optimizer)
            self._share_overflow(scaler, optimizer)

    def _compare(self, scaler: Any, optimizer: Any) -> None:
        mine = [scaler.get_scale(), scaler._get_growth_tracker()]
        everyones = of_all_ranks(self._communicator, mine, torch.float64)
        if not everyones.ne(everyones[0]).any():
            return
        listed = ", ".join(f"{scale:g} ({int(steps)}) on rank {r}" for r, (scale, steps) in enumerate(everyones))
        raise FailedPrecondition(
            f"{type(scaler).__name__}.step({type(optimizer).__name__}): the scaler's state differs between ranks of "
            f"{self._model}, its scale (and the steps since that changed) being {listed}. Gradients are averaged as if "
            "all ranks scaled alike, so that training would go on with wrong numbers, now or once one rank's scale "
            "grows before another's. A scaler that was used where each rank looks at its own gradients (local_sgd, "
            "diloco, decentralized) has a state of each rank's own: make a new GradScaler after changing the "
            "algorithm, or give all ranks rank 0's by scaler.load_state_dict, before the loss is scaled"
        )

    def _share_overflow(self, scaler: Any, optimizer: Any) -> None:
        flags = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if not everyone(self._communicator, not _overflow(scaler, optimizer)):
            for flag in flags.values():
                flag.fill_(1.0)
