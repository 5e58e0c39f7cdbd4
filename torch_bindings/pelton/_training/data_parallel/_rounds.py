"""How one wrapped model's ranks are brought together, seen from the training loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pelton import _C
from pelton.errors import Unsupported


@dataclass(frozen=True)
class Bucket:
    """The tensors that are communicated together. Threads: a value. Owns: their names."""

    name: str
    tensor_names: tuple[str, ...]


class Rounds:
    """The communication of one model under one algorithm, from registration to `detach`. Of the training's moments
    subclasses choose those that concern them.

    Threads: the trainer's. Owns: the runtime's model.
    """

    may_differ = False
    """Whether the ranks' parameters may differ between rounds."""
    weights_are_equal = False
    """Whether, now that a step has ended, all ranks hold the same weights to the bit."""
    needs_backward = False
    """Whether a step now is in step with the other ranks only if a backward pass has been since the last one."""
    steps = 0
    """How many steps the algorithm's trigger has counted."""
    runs_apart = False
    """Whether ranks go on by themselves for several steps, so that nothing else may keep them in step."""
    sums = False
    """Whether gradients become the ranks' sum, and not their mean."""
    remembers_weights = False
    """Whether what the algorithm remembers belongs to the weights that were."""
    remembers_optimizer = False
    """Whether it communicates an optimizer's state, which is to be rank 0's where it was loaded."""
    chooses_buckets = True
    """Whether the runtime chooses the buckets."""
    is_averaging = False
    """Whether an averaging beside training goes on, or will with the first forward pass."""

    def check(self) -> None:
        """Raises what an earlier round failed with, or that one was left in the middle.

        Raises:
          PeltonError: so it is.
        """

    def changes(self) -> list[str]:
        """What is no longer as it was registered, "name: what changed"."""
        raise NotImplementedError

    def take_over(self, before: Rounds) -> None:
        """Knows which gradients are results of a round, as earlier rounds knew.

        Args:
          before: of the same model, and detached; what they communicated may be something else.
        """

    def local_gradients(self) -> list[str]:
        """Names of the parameters whose gradients are this rank's own (`no_sync`, or because weights are what is
        communicated). Also after `detach`.
        """
        raise NotImplementedError

    def mark_local(self, names: Sequence[str]) -> None:
        """Has the next round communicate gradients that are this rank's own, also if no backward pass makes more of
        them.

        Args:
          names: of their parameters.
        """
        raise NotImplementedError

    def check_local_gradients(self, names: Sequence[str]) -> None:
        """Whether those of them may be communicated outside of a round.

        Raises:
          FailedPrecondition: one is the ranks' sum already, which would count once for each rank.
        """

    def set_synchronized(self, enabled: bool) -> None:
        """Off: what happens from now on is local (`no_sync`)."""
        raise NotImplementedError

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

    def after_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """It has stepped.

        Returns:
          Whether that completes a step of the model's: all optimizers that the algorithm was given have stepped, or
          none was given. A step inside `no_sync` is none of the model's.
        """
        raise NotImplementedError

    def step_skipped(self, optimizer: torch.optim.Optimizer) -> bool:
        """A gradient scaler has skipped the step of an optimizer that was given: on this rank, perhaps on it alone.

        Returns:
          As `after_step`.
        """
        raise NotImplementedError

    def finish(self) -> int:
        """Completes the round that is open, if one is; the number of its buckets. Collective then."""
        raise NotImplementedError

    def come_together(self, has_changed: bool) -> bool:
        """Has the algorithm itself give all ranks the same weights; whether it does. Collective.

        Args:
          has_changed: what is communicated is no longer what was registered.
        """
        self.stop()
        return False

    def stop(self, timeout_s: float | None = None) -> None:
        """Ends an averaging beside training when all ranks have asked for it. Idempotent.

        Args:
          timeout_s: how long to wait for that; None: as long as for an operation. The wish stands after it.

        Raises:
          DeadlineExceeded: not all ranks have asked in time.
          PeltonError: what averaging failed with.
        """

    def stay_stopped(self) -> None:
        """Has averaging that has begun on no rank wait for `resume`; unlike `stop` it makes no last round."""

    def resume(self) -> None:
        """Goes on with averaging once all ranks have asked for it. Idempotent.

        Raises:
          PeltonError: what averaging failed with.
        """

    @property
    def bagua_buckets(self) -> Sequence[Any]:
        """The buckets in the order in which they are communicated."""
        return [Bucket(f"bucket {i}", tuple(names)) for i, names in enumerate(self.buckets())]

    def buckets(self) -> list[list[str]]:
        """Tensor names by bucket, in launch order."""
        raise NotImplementedError

    def register_ordered_buckets(self, buckets: Sequence[Any]) -> None:
        """See `ModelBackend`; only where the runtime does not choose the buckets."""
        raise NotImplementedError

    def flat_buckets(self) -> list[tuple[torch.Tensor, list[tuple[str, int]]]]:
        """The memory in which gradients lie one after the other, by bucket, and the first element of each parameter's;
        of use until the buckets change.
        """
        return []

    def tune(self, csv_path: str) -> None:
        """Tunes the bucket size from the next round on. On all ranks alike.

        Args:
          csv_path: where rank 0 of the group adds what it measured; "": nowhere.

        Raises:
          Unsupported: these are rounds whose buckets are not the runtime's to choose, or that depend on them.
        """
        raise Unsupported(
            f"autotune: the bucket size cannot be tuned under rounds of the kind {type(self).__name__}; leave it out"
        )

    def end_tuning(self) -> None:
        """Stays with the buckets in force, on all ranks at the same round. Idempotent."""

    @property
    def is_tuning(self) -> bool:
        """Whether the bucket size is being tuned."""
        return False

    def statistics(self) -> dict[str, float]:
        """Counts since registration."""
        raise NotImplementedError

    def state(self) -> _C.State:
        """What the algorithm remembers.

        Raises:
          FailedPrecondition: a round is open.
        """
        raise NotImplementedError

    def detach(self, timeout_s: float = 0.0) -> None:
        """Gives everything back. Idempotent.

        Args:
          timeout_s: how long to wait for the other ranks, where something goes on beside training that all should
            end together. Units: seconds.
        """
        raise NotImplementedError
