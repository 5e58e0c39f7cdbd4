"""Rounds of the runtime's own algorithms: events are handed on as they come, and the runtime does the rest."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pelton import _C
from pelton._training import _before_writes
from pelton._training.algorithms.base import OptimizerExchange
from pelton._training.data_parallel._rounds import Rounds
from pelton.errors import FailedPrecondition


@dataclass(frozen=True)
class OptimizerState:
    """What an algorithm communicates of an optimizer. Threads: the trainer's. Owns: nothing."""

    tensors: Callable[[], Sequence[torch.Tensor]]  # as the optimizer has them now, by parameter
    betas: Callable[[], Sequence[float]] | None = None  # of momenta: how much of each a new gradient leaves now
    exchange: OptimizerExchange | None = None  # where the optimizer asks for rounds within its step


class RuntimeRounds(Rounds):
    """The algorithm's trigger, in the runtime, makes rounds of the events (`core/round/trigger.h`).

    Threads: the trainer's. Owns: the runtime's models, and the attribute `exchange` of an optimizer that has one.
    """

    def __init__(
        self,
        models: Sequence[_C.Model],
        optimizers: Sequence[torch.optim.Optimizer],
        trigger: str,
        timeout_s: float,
        *,
        state: OptimizerState | None = None,
        runs_apart: bool = False,
    ) -> None:
        """Args:
        models: the runtime's: the algorithm's own, and, where an optimizer asks for its rounds, that of the gradients.
        optimizers: those that the algorithm was given.
        trigger: the name of the algorithm's.
        timeout_s: how long to wait for the other ranks to stop. Units: seconds.
        state: what is communicated, where that is an optimizer's.
        runs_apart: whether a rank's round is no affair of ranks that are at others.
        """
        self._models = tuple(models)
        self._model = self._models[0]
        self._optimizers = list(optimizers)
        self._timeout_s = timeout_s
        self._state = state
        self._registered = list(state.tensors()) if state is not None else []
        self._exchange = state.exchange if state is not None else None
        self._is_synchronized = True
        self.sums = self._model.sums
        self.may_differ = self._model.may_differ
        self.remembers_optimizer = self._exchange is not None
        self.remembers_weights = trigger == "after_step" and self._exchange is None
        goes_apart = self.remembers_weights and self._model.interval > 1
        self.runs_apart = runs_apart or trigger == "timer" or goes_apart or self._exchange is not None
        if self._exchange is not None:
            self._exchange.optimizer.exchange = self._call

    @property
    def weights_are_equal(self) -> bool:  # type: ignore[override]  # elsewhere it is a constant, as those below
        """See `Rounds`."""
        return self._model.tensors_are_equal

    @property
    def needs_backward(self) -> bool:  # type: ignore[override]
        """See `Rounds`."""
        return any(model.needs_backward for model in self._models)

    @property
    def steps(self) -> int:  # type: ignore[override]
        """See `Rounds`."""
        return self._model.steps

    @property
    def is_averaging(self) -> bool:  # type: ignore[override]
        """See `Rounds`."""
        return self._model.is_averaging

    def check(self) -> None:
        """See `Rounds`."""
        for model in self._models:
            model.check_round()

    def changes(self) -> list[str]:
        """See `Rounds`."""
        changes = [change for model in self._models for change in model.check_parameters()]
        return changes + ["the optimizer's state was replaced"] * self._was_replaced()

    def take_over(self, before: Rounds) -> None:
        """See `Rounds`."""
        for model in self._models:
            for other in before._models if isinstance(before, RuntimeRounds) else ():
                model.take_over(other)

    def local_gradients(self) -> list[str]:
        """See `Rounds`."""
        return [name for model in self._models for name in model.local_gradients()]

    def mark_local(self, names: Sequence[str]) -> None:
        """See `Rounds`."""
        for model in self._models:
            model.mark_local(list(names))

    def check_local_gradients(self, names: Sequence[str]) -> None:
        """See `Rounds`."""
        for model in self._models:
            model.check_local_gradients(names)

    def set_synchronized(self, enabled: bool) -> None:
        """See `Rounds`."""
        self._is_synchronized = enabled
        self._model.set_synchronized(enabled)
        for gradients in self._models[1:]:
            assert self._exchange is not None, "gradients are beside what an optimizer exchanges"
            gradients.set_synchronized(enabled and self._exchange.needs_gradients())

    def before_forward(self, inputs: object) -> None:
        """See `Rounds`."""
        _before_writes.poll()
        if self.remembers_weights and len(self._optimizers) > 1:
            _before_writes.settle()  # where only some of them have stepped, the step is counted now
        self._post(_C.Event.FORWARD_BEGINS)

    def before_evaluation(self) -> None:
        """See `Rounds`."""
        _before_writes.settle()
        self._post(_C.Event.EVALUATION_BEGINS)

    def after_forward(self, outputs: Sequence[torch.Tensor], is_training: bool) -> None:
        """See `Rounds`."""
        for model in self._models:
            model.watch_outputs(outputs, is_training)

    def backward_began(self) -> None:
        """See `Rounds`."""
        _before_writes.poll()
        self._post(_C.Event.BACKWARD_BEGINS)
        if self._state is not None and self._state.betas is not None:
            self._model.set_betas(self._state.betas())

    def backward_ended(self, may_go_on: bool) -> None:
        """See `Rounds`."""
        self._post(_C.Event.BACKWARD_ENDS, may_go_on=may_go_on)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Rounds`."""
        self._post(_C.Event.BEFORE_STEP, optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """See `Rounds`."""
        return self._post(_C.Event.AFTER_STEP, optimizer)

    def step_skipped(self, optimizer: torch.optim.Optimizer) -> bool:
        """See `Rounds`."""
        return self._post(_C.Event.STEP_SKIPPED, optimizer)

    def finish(self) -> int:
        """See `Rounds`."""
        _before_writes.settle()
        for model in self._models:
            model.finish()
        return len(self.buckets())

    def come_together(self, has_changed: bool) -> bool:
        """See `Rounds`; an optimizer exchanges what it has accumulated since it last did."""
        if self._exchange is None:
            return super().come_together(has_changed)
        if not has_changed:
            self._exchange.optimizer.come_together()
        return True

    def stop(self, timeout_s: float | None = None) -> None:
        """See `Rounds`."""
        self._model.stop(self._timeout_s if timeout_s is None else timeout_s)

    def stay_stopped(self) -> None:
        """See `Rounds`."""
        self._model.stay_stopped()

    def resume(self) -> None:
        """See `Rounds`."""
        self._model.resume()

    def buckets(self) -> list[list[str]]:
        """See `Rounds`."""
        return self._model.buckets()

    def flat_buckets(self) -> list[tuple[torch.Tensor, list[tuple[str, int]]]]:
        """See `Rounds`."""
        return [bucket for model in self._models for bucket in model.flat_buckets()]

    def tune(self, csv_path: str) -> None:
        """See `Rounds`."""
        self._model.tune(csv_path)

    def end_tuning(self) -> None:
        """See `Rounds`."""
        self._model.end_tuning()

    @property
    def is_tuning(self) -> bool:
        """See `Rounds`."""
        return self._model.is_tuning

    def statistics(self) -> dict[str, float]:
        """See `Rounds`; those of all models together, but for the size of the buckets."""
        counts = [model.statistics() for model in self._models]
        sums = {name: sum(count[name] for count in counts) for name in counts[0]}
        return {**sums, "bucket_size_bytes": counts[0]["bucket_size_bytes"]}

    def state(self) -> _C.State:
        """See `Rounds`."""
        return self._model.state()

    def detach(self, timeout_s: float = 0.0) -> None:
        """See `Rounds`."""
        if self._exchange is not None:
            self._exchange.optimizer.exchange = None
        for model in self._models:
            model.detach(timeout_s)

    def _post(
        self, event: _C.Event, optimizer: torch.optim.Optimizer | None = None, *, may_go_on: bool = False
    ) -> bool:
        """Whether the algorithm's own model says that the event completes a step."""
        if self._exchange is not None and optimizer is None:
            self.set_synchronized(self._is_synchronized)  # whether the gradients of what comes are needed
        is_given = optimizer is not None and any(optimizer is given for given in self._optimizers)
        number, count = id(optimizer), len(self._optimizers)
        completes = [model.post(event, number, is_given, count, may_go_on) for model in self._models]
        return completes[0]

    def _was_replaced(self) -> bool:
        """`load_state_dict` of an optimizer puts other tensors in place of those that are registered."""
        now = self._state.tensors() if self._state is not None else []
        return any(map(operator.is_not, now, self._registered))

    def _call(self) -> None:
        assert self._exchange is not None
        if self._was_replaced():
            raise FailedPrecondition(
                f"{type(self._exchange.optimizer).__name__}: its state was replaced since the last forward pass; load "
                "an optimizer's state before the forward pass, not between that and the step"
            )
        self._model.post(_C.Event.CALL)
