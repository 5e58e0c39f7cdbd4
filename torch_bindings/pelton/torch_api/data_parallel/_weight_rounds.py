"""Rounds of weights: when they begin and when their results are merged, by the algorithm's schedule.

What happens inside `no_sync` does not count: a forward pass or an optimizer's step there begins no round and is no
step of the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pelton import _C


@dataclass(frozen=True)
class Schedule:
    """Which steps have a round; they count from 1. Threads: a value. Owns: nothing."""

    subject: str
    first_step: int = 1
    interval: int = 1
    delay: int = 0  # in steps, from a round's beginning to its end

    def is_due(self, step: int) -> bool:
        """Whether a round begins at this step."""
        return step >= self.first_step and (step - self.first_step) % self.interval == 0


class _WeightRounds:
    """What both kinds share. Threads: the trainer's. Owns: the runtime's model."""

    may_differ = True

    def __init__(self, model: _C.WeightModel, schedule: Schedule, steps: int) -> None:
        """Args:
        model: the runtime's.
        schedule: the algorithm's.
        steps: that the schedule has counted before, in another registration.
        """
        self._model = model
        self._schedule = schedule
        self.steps = steps
        self._is_synchronized = True

    def check(self) -> None:
        """See `Rounds`."""
        self._model.check_round()

    def changes(self) -> list[str]:
        """See `Rounds`."""
        return self._model.check_parameters()

    def set_synchronized(self, enabled: bool) -> None:
        """See `Rounds`."""
        self._is_synchronized = enabled

    def finish(self) -> None:
        """See `Rounds`."""
        self._model.finish()

    def buckets(self) -> list[list[str]]:
        """See `Rounds`."""
        return self._model.buckets()

    def statistics(self) -> dict[str, float]:
        """See `Rounds`."""
        return self._model.statistics()

    def state(self) -> _C.State:
        """See `Rounds`."""
        return self._model.state()

    def detach(self, timeout_s: float = 0.0) -> None:
        """See `Rounds`."""
        self._model.detach()


class InForwardRounds(_WeightRounds):
    """Rounds that begin before a forward pass and end before the optimizer's step.

    A step of the schedule is an iteration: it begins with the first forward pass after an optimizer's step, or after
    a backward pass where no optimizer stepped (as when a gradient scaler skips one), so that ranks count alike.
    Several forward passes before one backward are one iteration. Inside an optimizer's closure the round ends with
    the backward pass.
    Threads: the trainer's. Owns: as its base.
    """

    def __init__(self, model: _C.WeightModel, schedule: Schedule, steps: int) -> None:
        """See its base."""
        super().__init__(model, schedule, steps)
        self._is_in_iteration = False
        self._is_in_step = False

    def before_forward(self, inputs: object) -> None:
        """Begins the iteration's round, if one is due."""
        if not self._is_synchronized or is_in_backward():
            return
        if self._is_in_iteration and not self._model.take_backward():
            return
        self._model.finish()
        self._model.take_backward()
        self._is_in_iteration = True
        self.steps += 1
        if self._schedule.is_due(self.steps):
            self._model.begin()

    def after_forward(self, outputs: Sequence[torch.Tensor]) -> None:
        """See `Rounds`."""
        if self._is_synchronized and not is_in_backward():
            self._model.watch_outputs(outputs, self._is_in_step)

    def before_step(self) -> None:
        """Merges the results: the gradients were taken before, the optimizer applies them after."""
        self._model.finish()
        self._is_in_step = True

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Rounds`."""
        self._is_in_iteration = self._is_in_step = False


class AfterStepRounds(_WeightRounds):
    """Rounds that begin after an optimizer's step and end there too, or `delay` steps later.

    With several optimizers a step of the schedule is one in which all have stepped; where only some have, it is
    counted at the next forward pass.
    Threads: the trainer's. Owns: as its base.
    """

    def __init__(
        self, model: _C.WeightModel, schedule: Schedule, steps: int, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Args:
        model: the runtime's.
        schedule: the algorithm's.
        steps: that the schedule has counted before, in another registration.
        optimizers: those that step the model.
        """
        super().__init__(model, schedule, steps)
        self._optimizers = {id(optimizer) for optimizer in optimizers}
        self._stepped: set[int] = set()
        # A round that was open when its state was saved: a schedule's delay is below its interval.
        self._begun_at = steps - (steps - schedule.first_step) % schedule.interval if model.is_open else 0

    def before_forward(self, inputs: object) -> None:
        """Counts a step that not all optimizers took part in."""
        if self._is_synchronized and self._stepped and not is_in_backward():
            self._count_step()

    def after_forward(self, outputs: Sequence[torch.Tensor]) -> None:
        """See `Rounds`."""

    def before_step(self) -> None:
        """See `Rounds`."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Counts the step once all optimizers have taken theirs."""
        if not self._is_synchronized:
            return
        self._stepped.add(id(optimizer))
        if self._stepped >= self._optimizers:
            self._count_step()

    def _count_step(self) -> None:
        self._stepped.clear()
        self.steps += 1
        if self._model.is_open and self.steps - self._begun_at >= self._schedule.delay:
            self._model.finish()
        if not self._schedule.is_due(self.steps):
            return
        self._begun_at = self.steps
        self._model.begin()
        if self._schedule.delay == 0:
            self._model.finish()


def is_in_backward() -> bool:
    """Whether a backward pass calls us, to compute again what a checkpoint did not keep."""
    return torch._C._current_graph_task_id() != -1
