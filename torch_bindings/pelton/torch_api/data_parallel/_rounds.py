"""How one wrapped model's ranks are brought together, seen from the training loop: one class per kind of algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from pelton import _C


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

    def after_forward(self, outputs: Sequence[torch.Tensor]) -> None:
        """A forward pass with gradients has ended; the outputs have gradient functions."""

    def before_step(self) -> None:
        """An optimizer is about to step."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""

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
