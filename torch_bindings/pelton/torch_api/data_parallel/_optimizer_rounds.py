"""Rounds that an optimizer asks for within its step, of tensors that it has accumulated."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from pelton import _C
from pelton.errors import FailedPrecondition
from pelton.torch_api._parameters import NamedTensors
from pelton.torch_api.algorithms.base import OptimizerExchange
from pelton.torch_api.data_parallel._rounds import Rounds


class OptimizerRounds(Rounds):
    """Beside them gradients are averaged for the steps that need it. Threads: the trainer's. Owns: the runtime's
    models, and the optimizer's attribute `exchange`.
    """

    may_differ = True
    needs_backward = True
    runs_apart = True
    remembers_optimizer = True

    def __init__(
        self,
        gradients: _C.Model,
        accumulated: _C.Model,
        exchange: OptimizerExchange,
        trainable: NamedTensors,
    ) -> None:
        """Args:
        gradients: the runtime's model of the gradients.
        accumulated: its model of what the optimizer accumulates.
        exchange: the optimizer's side.
        trainable: the parameters.
        """
        self._trainable = trainable
        self._registered = [exchange.accumulated_of(parameter) for _, parameter in trainable]
        self._gradients = gradients
        self._accumulated = accumulated
        self._exchange = exchange
        self._is_synchronized = True
        exchange.optimizer.exchange = self._run

    def _were_replaced(self) -> bool:
        """`load_state_dict` of an optimizer puts other tensors in place of those that are registered."""
        now = [self._exchange.accumulated_of(parameter) for _, parameter in self._trainable]
        return any(map(operator.is_not, now, self._registered))

    def _run(self) -> None:
        if self._were_replaced():
            raise FailedPrecondition(
                f"{type(self._exchange.optimizer).__name__}: its state was replaced since the last forward pass; load "
                "an optimizer's state before the forward pass, not between that and the step"
            )
        self._accumulated.post(_C.Event.CALL)

    def come_together(self, has_changed: bool) -> bool:
        """Exchanges what the optimizer has accumulated since it last did."""
        if not has_changed:
            self._exchange.optimizer.come_together()
        return True

    def check(self) -> None:
        """See `Rounds`."""
        self._gradients.check_round()
        self._accumulated.check_round()

    def changes(self) -> list[str]:
        """See `Rounds`."""
        changes = self._gradients.check_parameters() + self._accumulated.check_parameters()
        return changes + ["the optimizer's state was replaced"] * self._were_replaced()

    def set_synchronized(self, enabled: bool) -> None:
        """See `Rounds`."""
        self._is_synchronized = enabled
        self._gradients.set_synchronized(enabled and self._exchange.needs_gradients())

    def before_forward(self, inputs: object) -> None:
        """Settles whether the backward pass that comes is a round, before it reaches an output."""
        self.set_synchronized(self._is_synchronized)

    def before_evaluation(self) -> None:
        """The same."""
        self.set_synchronized(self._is_synchronized)

    def backward_began(self) -> None:
        """The same, where no forward pass was seen."""
        self.check()
        self.set_synchronized(self._is_synchronized)

    def after_forward(self, outputs: Sequence[torch.Tensor], is_training: bool) -> None:
        """See `Rounds`."""
        self._gradients.watch_outputs(outputs, is_training)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Rounds`."""
        self._gradients.finish()

    def finish(self) -> int:
        """See `Rounds`."""
        self._gradients.finish()
        return len(self.buckets())

    def buckets(self) -> list[list[str]]:
        """See `Rounds`."""
        return self._accumulated.buckets()

    def statistics(self) -> dict[str, float]:
        """Of both models together."""
        accumulated = self._accumulated.statistics()
        return {name: count + accumulated[name] for name, count in self._gradients.statistics().items()}

    def state(self) -> _C.State:
        """See `Rounds`; the gradients' exchange keeps nothing."""
        return self._accumulated.state()

    def detach(self, timeout_s: float = 0.0) -> None:
        """See `Rounds`."""
        self._exchange.optimizer.exchange = None
        self._gradients.detach()
        self._accumulated.detach()
