"""Rounds of what backward passes make, gradients or momenta: complete when the outermost backward ends."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch

from pelton import _C
from pelton.torch_api.data_parallel._rounds import QuietRounds

Moments = Callable[[], Sequence[tuple[torch.Tensor, float]]]


class GradientRounds(QuietRounds):
    """The C++ hooks do the work. Threads: the trainer's. Owns: the runtime's model."""

    may_differ = False
    weights_are_equal = True
    needs_backward = True
    steps = 0

    def __init__(self, model: _C.Model, moments: Moments | None = None) -> None:
        """Args:
        model: the runtime's.
        moments: where it communicates momenta, those of the parameters as the optimizer has them now, each with how
          much of it a new gradient leaves, which schedulers may change.
        """
        self._model = model
        self._moments = moments
        self._registered = [moment for moment, _ in moments()] if moments is not None else []

    def check(self) -> None:
        """See `Rounds`."""
        self._model.check_round()

    def changes(self) -> list[str]:
        """See `Rounds`."""
        changes = self._model.check_parameters()
        if self._moments is not None:
            now = [moment for moment, _ in self._moments()]
            if any(map(operator.is_not, now, self._registered)):
                changes.append("the optimizer's moments were replaced")
        return changes

    def set_synchronized(self, enabled: bool) -> None:
        """See `Rounds`."""
        self._model.set_synchronized(enabled)

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
        self._model.finish_round()

    def finish(self) -> None:
        """See `Rounds`."""
        self._model.finish_round()

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
