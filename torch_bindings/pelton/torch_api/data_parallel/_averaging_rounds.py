"""Averaging beside training: the trainer holds the weights from each forward pass to the optimizer's step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pelton import _C
from pelton.torch_api.data_parallel._algorithm_state import NOTHING
from pelton.torch_api.data_parallel._weight_rounds import is_in_backward


class AveragingRounds:
    """Averages are added while nobody holds the weights: from the last optimizer's step to the next forward pass in
    training mode, or, where no optimizer steps after a backward pass, at that forward pass. Inside `no_sync` nothing
    is given free: what has been accumulated there was taken at these weights.

    Threads: the trainer's. Owns: the runtime's model with its loop.
    """

    may_differ = True
    steps = 0

    def __init__(
        self, model: _C.AveragingModel, optimizers: Sequence[torch.optim.Optimizer], timeout_s: float
    ) -> None:
        """Args:
        model: the runtime's; its loop has not been started.
        optimizers: those that step the model.
        timeout_s: how long to wait for the other ranks to stop. Units: seconds.
        """
        self._model = model
        self._optimizers = {id(optimizer) for optimizer in optimizers}
        self._stepped: set[int] = set()
        self._timeout_s = timeout_s
        self._is_synchronized = True
        self._has_begun = False
        self._is_wanted = True

    def check(self) -> None:
        """See `Rounds`; a failure is raised where the weights are claimed."""

    def changes(self) -> list[str]:
        """See `Rounds`."""
        return self._model.check_parameters()

    def set_synchronized(self, enabled: bool) -> None:
        """See `Rounds`."""
        self._is_synchronized = enabled

    def before_forward(self, inputs: object) -> None:
        """Takes hold of the weights; the first one starts the averaging.

        Raises:
          PeltonError: what averaging failed with.
        """
        if is_in_backward():
            return
        if not self._has_begun and self._is_wanted:
            self._has_begun = True
            self._model.claim()
            self._model.resume()
            return
        if self._is_synchronized and self._model.take_backward():
            self._model.release()
        self._model.claim()

    def after_forward(self, outputs: Sequence[torch.Tensor]) -> None:
        """See `Rounds`."""
        if self._is_synchronized and not is_in_backward():
            self._model.watch_outputs(outputs)

    def before_step(self) -> None:
        """See `Rounds`."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Lets go of the weights once all optimizers have stepped."""
        self._stepped.add(id(optimizer))
        if self._is_synchronized and self._stepped >= self._optimizers:
            self._stepped.clear()
            self._model.take_backward()
            self._model.release()

    def stop(self) -> None:
        """Ends the averaging when all ranks have asked for it. Idempotent.

        Raises:
          DeadlineExceeded: not all ranks have asked in time.
          PeltonError: what averaging failed with.
        """
        if self._is_wanted and not self._has_begun:
            self._model.resume()  # the others may have begun, and end only together with this rank
        self._has_begun, self._is_wanted = True, False
        self._model.stop(self._timeout_s)

    def resume(self) -> None:
        """Goes on once all ranks have asked for it. Idempotent.

        Raises:
          PeltonError: what averaging failed with.
        """
        self._is_wanted = True
        if self._has_begun:
            self._model.resume()

    def finish(self) -> None:
        """See `Rounds`; the loop completes its rounds by itself."""

    def buckets(self) -> list[list[str]]:
        """See `Rounds`."""
        return self._model.buckets()

    def statistics(self) -> dict[str, float]:
        """See `Rounds`."""
        return self._model.statistics()

    def state(self) -> _C.State:
        """Nothing: each average is of the weights alone."""
        return NOTHING

    def detach(self, timeout_s: float = 0.0) -> None:
        """See `Rounds`."""
        self._model.detach(timeout_s)
