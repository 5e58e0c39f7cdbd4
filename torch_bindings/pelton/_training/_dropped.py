"""Models that nobody holds any more while they average beside training: their ranks drop them at different times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Protocol

import torch

from pelton._training._parameters import NamedTensors
from pelton.errors import PeltonError


class Averaging(Protocol):
    """Rounds of a model beside training. Threads: any. Owns: its own."""

    def stop(self, timeout_s: float) -> None:
        """Ends them when all ranks have asked for it, and raises a PeltonError where not all have in time."""

    def detach(self, timeout_s: float) -> None:
        """Frees everything, after they have stopped or the time is over."""


class DroppedModels:
    """Of one rank. Each goes on with its rounds, because the other ranks may train theirs for long, until all ranks
    have dropped it or have asked it to stop: as after `stop_averaging` at different times.

    Threads: any that drops a model, the trainer's else. Owns: what is left of the models.
    """

    def __init__(self) -> None:
        self._left: list[tuple[Averaging, NamedTensors]] = []

    def add(self, rounds: Averaging, tensors: NamedTensors) -> None:
        """Asks to stop, which lets go of the weights, and waits for nobody.

        Args:
          rounds: of the model.
          tensors: that they average.
        """
        self._left.append((rounds, tensors))
        _has_stopped(rounds)

    def end_stopped(self) -> None:
        """Frees those that all ranks have dropped."""
        for entry in [entry for entry in self._left if _has_stopped(entry[0])]:
            self._end(entry, 0.0)

    def end_those_of(self, tensors: Iterable[torch.Tensor], timeout_s: float) -> None:
        """Waits for the other ranks to drop those whose tensors another model is to have. Collective over their ranks.

        Args:
          tensors: of the other model.
          timeout_s: how long to wait. Units: seconds.
        """
        wanted = {id(tensor) for tensor in tensors}
        for entry in [entry for entry in self._left if any(id(tensor) in wanted for _, tensor in entry[1])]:
            self._end(entry, timeout_s)

    def end(self, timeout_s: float) -> None:
        """Ends all, as the end of the job does with models that are there. Idempotent."""
        for entry in list(self._left):
            self._end(entry, timeout_s)

    def _end(self, entry: tuple[Averaging, NamedTensors], timeout_s: float) -> None:
        self._left.remove(entry)
        entry[0].detach(timeout_s)


def _has_stopped(rounds: Averaging) -> bool:
    """Whether all ranks have asked to stop; the wish of this one stands from now on."""
    with contextlib.suppress(PeltonError):
        rounds.stop(0.0)
        return True
    return False
