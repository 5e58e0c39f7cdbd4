"""How one wrapped model's ranks are brought together, seen from the training loop: one class per kind of algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pelton import _C


@dataclass(frozen=True)
class Bucket:
    """The tensors that are communicated together. Threads: a value. Owns: their names."""

    name: str
    tensor_names: tuple[str, ...]


class Rounds(Protocol):
    """The communication of one model under one algorithm, from registration to `detach`.

    Threads: the trainer's. Owns: the runtime's model.
    """

    @property
    def may_differ(self) -> bool:
        """Whether the ranks' parameters may differ between rounds."""

    @property
    def steps(self) -> int:
        """How many steps the algorithm's schedule has counted."""

    @property
    def weights_are_equal(self) -> bool:
        """Whether, now that a step has ended, all ranks hold the same weights to the bit."""

    @property
    def needs_backward(self) -> bool:
        """Whether a step now is in step with the other ranks only if a backward pass has been since the last one."""

    def check(self) -> None:
        """Raises what an earlier round failed with, or that one was left in the middle.

        Raises:
          PeltonError: so it is.
        """

    def changes(self) -> list[str]:
        """What is no longer as it was registered, "name: what changed"."""

    def set_synchronized(self, enabled: bool) -> None:
        """Off: what happens from now on is local (`no_sync`)."""

    def before_forward(self, inputs: object) -> None:
        """A forward pass in training mode, with gradients, begins.

        Args:
          inputs: the module's positional arguments.
        """

    def before_evaluation(self) -> None:
        """A forward pass in evaluation mode, with gradients, begins; maybe on this rank alone."""

    def after_forward(self, outputs: Sequence[torch.Tensor], is_training: bool) -> None:
        """A forward pass with gradients has ended.

        Args:
          outputs: those that have gradient functions.
          is_training: whether the module is in training mode.
        """

    def backward_began(self) -> None:
        """A backward pass outside `no_sync` has made its first gradient. A forward pass need not have been seen."""

    def backward_ended(self, may_go_on: bool) -> None:
        """A backward pass has ended, the outermost one.

        Args:
          may_go_on: another one may follow that needs the weights as they are, of the same graph or of another forward
            pass whose outputs live.
        """

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer of communicated parameters is about to step, one that was given or another."""

    def after_step(self, optimizer: torch.optim.Optimizer, is_given: bool, completes: bool) -> None:
        """It has stepped.

        Args:
          optimizer: the optimizer.
          is_given: it is one of those that the algorithm was given.
          completes: all those have stepped; or none was given.
        """

    def step_skipped(self, optimizer: torch.optim.Optimizer, completes: bool) -> None:
        """A gradient scaler has skipped the step of an optimizer that was given: on this rank, perhaps on it alone.

        Args:
          optimizer: the optimizer.
          completes: all those that were given have stepped, or have been skipped.
        """

    def finish(self) -> None:
        """Completes the round that is open, if one is. Collective then."""

    def buckets(self) -> list[list[str]]:
        """Tensor names by bucket, in launch order."""

    def statistics(self) -> dict[str, float]:
        """Counts since registration."""

    def state(self) -> _C.State:
        """What the algorithm remembers.

        Raises:
          FailedPrecondition: a round is open.
        """

    def detach(self, timeout_s: float = 0.0) -> None:
        """Gives everything back. Idempotent.

        Args:
          timeout_s: how long to wait for the other ranks, where something goes on beside training that all should
            end together. Units: seconds.
        """


class QuietRounds:
    """Does nothing at any of these moments; rounds choose from them. Threads: the trainer's. Owns: nothing."""

    weights_are_equal = False
    needs_backward = False

    def before_forward(self, inputs: object) -> None:
        """See `Rounds`."""

    def before_evaluation(self) -> None:
        """See `Rounds`."""

    def after_forward(self, outputs: Sequence[torch.Tensor], is_training: bool) -> None:
        """See `Rounds`."""

    def backward_began(self) -> None:
        """See `Rounds`."""

    def backward_ended(self, may_go_on: bool) -> None:
        """See `Rounds`."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Rounds`."""

    def after_step(self, optimizer: torch.optim.Optimizer, is_given: bool, completes: bool) -> None:
        """See `Rounds`."""

    def step_skipped(self, optimizer: torch.optim.Optimizer, completes: bool) -> None:
        """See `Rounds`."""
