"""Rounds of weights: when they begin and when their results are merged, by the algorithm's schedule.

What happens inside `no_sync` does not count: a forward pass or an optimizer's step there begins no round and is no
step of the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pelton import _C
from pelton.errors import FailedPrecondition
from pelton.torch_api.data_parallel._rounds import QuietRounds
from pelton.torch_api.data_parallel._steps import fingerprint


@dataclass(frozen=True)
class Schedule:
    """Which steps have a round; they count from 1. Threads: a value. Owns: nothing."""

    subject: str
    first_step: int = 1
    interval: int = 1
    delay: int = 0  # in steps, from a round's beginning to its end
    makes_equal: bool = True  # whether all ranks hold the same once a round's results are merged

    def is_due(self, step: int) -> bool:
        """Whether a round begins at this step."""
        return step >= self.first_step and (step - self.first_step) % self.interval == 0


class _WeightRounds(QuietRounds):
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
    """Rounds that begin before a forward pass and end with the backward pass, so that whatever changes the weights
    after it, announced or not, changes the results.

    A step of the schedule is an iteration: it begins with the first forward pass after an optimizer's step, or after
    a backward pass where no optimizer stepped (as when a gradient scaler skips one), so that ranks count alike.
    Several forward passes before one backward are one iteration. Where no forward pass was seen in training mode, the
    first gradient of a backward pass begins one.
    Threads: the trainer's. Owns: as its base.
    """

    def __init__(
        self,
        model: _C.WeightModel,
        schedule: Schedule,
        steps: int,
        parameters: Sequence[torch.Tensor],
        runs_apart: bool = False,
    ) -> None:
        """Args:
        model: the runtime's.
        schedule: the algorithm's.
        steps: that the schedule has counted before, in another registration.
        parameters: whose values are communicated.
        runs_apart: whether a rank's round is no affair of ranks that are at others.
        """
        super().__init__(model, schedule, steps)
        self.runs_apart = runs_apart
        self._parameters = parameters
        self._is_in_iteration = False
        self._has_backward = False  # the iteration has
        self._is_announced = False  # the iteration, by a forward pass
        self._print: list[float] | None = None  # of the weights, where a merge waits

    @property
    def needs_backward(self) -> bool:  # type: ignore[override]  # elsewhere it is a constant
        """Unless a forward pass has begun the iteration."""
        return not self._is_in_iteration

    def before_forward(self, inputs: object) -> None:
        """Begins the iteration's round, if one is due."""
        if self._is_synchronized and not is_in_backward() and (self._has_backward or not self._is_in_iteration):
            self._begin()
            self._is_announced = True

    def backward_began(self) -> None:
        """Begins it, where no forward pass did."""
        if not self._is_in_iteration or (self._has_backward and not self._is_announced):
            self._begin()

    def backward_ended(self, may_go_on: bool) -> None:
        """Merges the results: the gradients were taken before, the optimizer applies them after."""
        self._has_backward = True
        if may_go_on:
            self._print = fingerprint(self._parameters) if self._model.is_open else None
        else:
            self._model.finish()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Merges them at the latest."""
        self._model.finish()

    def after_step(self, optimizer: torch.optim.Optimizer, is_given: bool, completes: bool) -> None:
        """See `Rounds`."""
        self._is_in_iteration = self._has_backward = self._is_announced = False

    def _begin(self) -> None:
        self._finish_late()
        self._is_in_iteration, self._has_backward, self._is_announced = True, False, False
        self.steps += 1
        if self._schedule.is_due(self.steps):
            self._model.begin()

    def _finish_late(self) -> None:
        """Merges what no backward pass's end and no optimizer did; a change of the weights would be lost with it."""
        kept, self._print = self._print, None
        if kept is not None and self._model.is_open and kept != fingerprint(self._parameters):
            raise FailedPrecondition(
                "the weights changed by something that is no torch.optim.Optimizer, after a backward pass that another "
                "one could follow (retain_graph=True, or outputs of another forward pass that live); the round of "
                "decentralized averaging that is under way would undo it. End the iteration with a backward pass that "
                "frees the last graph, or step with an optimizer of torch's"
            )
        self._model.finish()


class AfterStepRounds(_WeightRounds):
    """Rounds that begin after an optimizer's step and end there too, or `delay` steps later.

    With several optimizers a step of the schedule is one in which all have stepped; where only some have, it is
    counted at the next forward pass in training mode, or when one of them is about to step again.
    Threads: the trainer's. Owns: as its base.
    """

    def __init__(self, model: _C.WeightModel, schedule: Schedule, steps: int) -> None:
        """See its base.

        Args:
          model: the runtime's.
          schedule: the algorithm's.
          steps: that the schedule has counted before, in another registration.
        """
        super().__init__(model, schedule, steps)
        self._stepped: set[int] = set()
        self.weights_are_equal = False
        # A round that was open when its state was saved: a schedule's delay is below its interval.
        self.interval = schedule.interval
        self._begun_at = steps - (steps - schedule.first_step) % schedule.interval if model.is_open else 0

    def before_forward(self, inputs: object) -> None:
        """Counts a step that not all optimizers took part in."""
        if self._is_synchronized and self._stepped and not is_in_backward():
            self._count_step()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Counts one, too."""
        if self._is_synchronized and id(optimizer) in self._stepped:
            self._count_step()

    def after_step(self, optimizer: torch.optim.Optimizer, is_given: bool, completes: bool) -> None:
        """Counts the step once all optimizers have taken theirs."""
        self.weights_are_equal = False
        if not self._is_synchronized or not is_given:
            return
        self._stepped.add(id(optimizer))
        if completes:
            self._count_step()

    def step_skipped(self, optimizer: torch.optim.Optimizer, completes: bool) -> None:
        """Counts it as a step: each rank's scaler looks at its own gradients, and all ranks have to count alike."""
        self.before_step(optimizer)
        self.after_step(optimizer, is_given=True, completes=completes)

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
            self.weights_are_equal = self._schedule.makes_equal


def is_in_backward() -> bool:
    """Whether a backward pass calls us, to compute again what a checkpoint did not keep."""
    return torch._C._current_graph_task_id() != -1
