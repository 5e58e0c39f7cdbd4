"""Rounds of the runtime's own algorithms: what the trainer does is handed on as events, and the runtime's model does
the rest.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch

from pelton import _C
from pelton.torch_api.data_parallel._rounds import Rounds

Moments = Callable[[], Sequence[tuple[torch.Tensor, float]]]


class _RuntimeRounds(Rounds):
    """What all of them share. Threads: the trainer's. Owns: the runtime's model."""

    _model: _C.Model

    def check(self) -> None:
        """See `Rounds`."""
        self._model.check_round()

    def changes(self) -> list[str]:
        """See `Rounds`."""
        return self._model.check_parameters()

    def set_synchronized(self, enabled: bool) -> None:
        """See `Rounds`."""
        self._model.set_synchronized(enabled)

    def finish(self) -> int:
        """See `Rounds`."""
        self._model.finish()
        return len(self._model.buckets())

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
        self._model.detach(timeout_s)


class GradientRounds(_RuntimeRounds):
    """Of what backward passes make, gradients or momenta: complete when the outermost one ends. C++ hooks do the work.

    Threads: the trainer's. Owns: the runtime's model.
    """

    weights_are_equal = True
    needs_backward = True

    def __init__(self, model: _C.Model, moments: Moments | None = None) -> None:
        """Args:
        model: the runtime's.
        moments: where it communicates momenta, those of the parameters as the optimizer has them now, each with how
          much of it a new gradient leaves, which schedulers may change.
        """
        self._model = model
        self._moments = moments
        self._registered = [moment for moment, _ in moments()] if moments is not None else []

    def changes(self) -> list[str]:
        """See `Rounds`."""
        changes = super().changes()
        if self._moments is not None:
            now = [moment for moment, _ in self._moments()]
            if any(map(operator.is_not, now, self._registered)):
                changes.append("the optimizer's moments were replaced")
        return changes

    def backward_began(self) -> None:
        """See `Rounds`."""
        self.check()
        if self._moments is not None:
            self._model.set_betas([beta for _, beta in self._moments()])

    def after_forward(self, outputs: Sequence[torch.Tensor], is_training: bool) -> None:
        """See `Rounds`."""
        self._model.watch_outputs(outputs, is_training)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Completes a round that a nested backward left open, where the loss was not made of the model's outputs."""
        self._model.finish()


class WeightRounds(_RuntimeRounds):
    """Of tensors between steps, weights for instance. The algorithm's trigger, in the runtime, makes rounds of the
    events (`core/round/trigger.h`).

    Threads: the trainer's. Owns: the runtime's model.
    """

    may_differ = True

    def __init__(self, model: _C.Model, trigger: str, timeout_s: float, runs_apart: bool = False) -> None:
        """Args:
        model: the runtime's.
        trigger: the name of its algorithm's.
        timeout_s: how long to wait for the other ranks to stop. Units: seconds.
        runs_apart: whether a rank's round is no affair of ranks that are at others.
        """
        self._model = model
        self._is_timed = trigger == "timer"
        self._timeout_s = timeout_s
        self.remembers_weights = trigger == "after_step"
        self.runs_apart = runs_apart or self._is_timed or (self.remembers_weights and model.interval > 1)

    @property
    def steps(self) -> int:  # type: ignore[override]  # elsewhere it is a constant, as the three below
        """See `Rounds`."""
        return self._model.steps

    @property
    def weights_are_equal(self) -> bool:  # type: ignore[override]
        """See `Rounds`."""
        return self._model.tensors_are_equal

    @property
    def needs_backward(self) -> bool:  # type: ignore[override]
        """See `Rounds`."""
        return self._model.needs_backward

    @property
    def is_averaging(self) -> bool:  # type: ignore[override]
        """See `Rounds`."""
        return self._is_timed and self._model.is_wanted

    def before_forward(self, inputs: object) -> None:
        """See `Rounds`."""
        self._model.post(_C.Event.FORWARD_BEGINS)

    def before_evaluation(self) -> None:
        """See `Rounds`."""
        self._model.post(_C.Event.EVALUATION_BEGINS)

    def backward_began(self) -> None:
        """See `Rounds`."""
        self._model.post(_C.Event.BACKWARD_BEGINS)

    def backward_ended(self, may_go_on: bool) -> None:
        """See `Rounds`."""
        self._model.post(_C.Event.BACKWARD_ENDS, may_go_on=may_go_on)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Rounds`."""
        self._model.post(_C.Event.BEFORE_STEP, id(optimizer))

    def after_step(self, optimizer: torch.optim.Optimizer, is_given: bool, completes: bool) -> None:
        """See `Rounds`."""
        self._model.post(_C.Event.AFTER_STEP, id(optimizer), is_given, completes)

    def step_skipped(self, optimizer: torch.optim.Optimizer, completes: bool) -> None:
        """See `Rounds`."""
        self._model.post(_C.Event.STEP_SKIPPED, id(optimizer), completes=completes)

    def stop(self) -> None:
        """See `Rounds`."""
        self._model.stop(self._timeout_s)

    def stay_stopped(self) -> None:
        """See `Rounds`."""
        self._model.stay_stopped()

    def resume(self) -> None:
        """See `Rounds`."""
        self._model.resume()
