"""Averaging beside training: the trainer holds the weights from each forward pass to the optimizer's step."""

from __future__ import annotations

import torch

from pelton import _C
from pelton.torch_api.data_parallel._algorithm_state import NOTHING
from pelton.torch_api.data_parallel._rounds import QuietRounds
from pelton.torch_api.data_parallel._weight_rounds import is_in_backward


class AveragingRounds(QuietRounds):
    """Averages are added while nobody holds the weights: from the last optimizer's step to the next forward pass, or,
    where no optimizer steps after a backward pass, at that forward pass. Inside `no_sync` nothing is given free: what
    has been accumulated there was taken at these weights. Where a backward pass comes without a forward pass that was
    seen, the weights are held all the time but for a moment after each step.

    Threads: the trainer's. Owns: the runtime's model with its loop.
    """

    may_differ = True
    steps = 0

    def __init__(self, model: _C.AveragingModel, timeout_s: float) -> None:
        """Args:
        model: the runtime's; its loop has not been started.
        timeout_s: how long to wait for the other ranks to stop. Units: seconds.
        """
        self._model = model
        self._timeout_s = timeout_s
        self._is_synchronized = True
        self._has_begun = False
        self._is_wanted = True
        self._has_backward = False  # since the weights were free
        self._saw_forward = False  # the same
        self._forwards_are_seen = True

    @property
    def is_wanted(self) -> bool:
        """Whether it goes on, or will with the first forward pass; False from `stop` to `resume`."""
        return self._is_wanted

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
        if not is_in_backward() and not self._start():
            self._hold(gives_way=self._is_synchronized and self._has_backward)
            self._saw_forward = self._forwards_are_seen = True

    def before_evaluation(self) -> None:
        """Takes hold of the weights of an averaging that has been started; a pass without a backward pass after it
        gives way to the next.
        """
        if self._has_begun and not is_in_backward():
            self._hold(gives_way=self._is_synchronized or not self._has_backward)
            self._saw_forward = True

    def backward_began(self) -> None:
        """Does what a forward pass should have done."""
        if not self._start() and not self._saw_forward:
            self._forwards_are_seen = False
            self._model.claim()

    def backward_ended(self, may_go_on: bool) -> None:
        """See `Rounds`."""
        self._has_backward = self._has_backward or self._is_synchronized

    def after_step(self, optimizer: torch.optim.Optimizer, is_given: bool, completes: bool) -> None:
        """Lets go of the weights once all optimizers have stepped."""
        if not self._is_synchronized or not completes:
            return
        self._free()
        if not self._forwards_are_seen:
            self._model.claim()

    def _start(self) -> bool:
        if self._has_begun or not self._is_wanted:
            return False
        self._has_begun = True
        self._model.claim()
        self._model.resume()
        return True

    def _hold(self, gives_way: bool) -> None:
        if gives_way:
            self._free()
        self._model.claim()

    def _free(self) -> None:
        self._has_backward = self._saw_forward = False
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

    def stay_stopped(self) -> None:
        """Has averaging that has begun on no rank wait for `resume`; unlike `stop` it makes no last round."""
        self._is_wanted = False

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
