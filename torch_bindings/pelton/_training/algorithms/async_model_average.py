"""Asynchronous model averaging: ranks train by themselves, and beside it their weights are averaged again and again."""

from __future__ import annotations

from typing import Any

from pelton._training.algorithms.base import GlobalAlgorithmRegistry, NamedAlgorithm, WarmUpImpl
from pelton.errors import InvalidArgument


class AsyncModelAverageAlgorithm(NamedAlgorithm):
    """Ranks need not take equally many steps. Each round adds to a rank's weights by how much the mean over all ranks
    differed from them when it began, so that what has been trained meanwhile is kept. It stops by agreement: `abort`
    ends it on all ranks after the same round, and a rank that has asked goes on taking part until all have.

    Shape: weights keep theirs. Threads: a value. Owns: its options.
    Source: Bagua, arXiv 2107.01499.
    """

    runtime_name = "async_model_average"
    own_arguments = ("peer_selection_mode", "warmup_steps")

    def __init__(
        self, peer_selection_mode: str = "all", sync_interval_ms: int = 500, warmup_steps: int = 0, **options: Any
    ) -> None:
        """Args:
        peer_selection_mode: "all", the only one.
        sync_interval_ms: from the end of a round to the beginning of the next. Units: milliseconds.
        warmup_steps: steps with gradient allreduce before, those inside `no_sync` not counted. Units: steps.
        **options: others of the runtime's `async_model_average`.

        Raises:
          InvalidArgument: another mode, a negative number, or as `RuntimeAlgorithm`.
        """
        if peer_selection_mode != "all":
            raise InvalidArgument(f"peer_selection_mode={peer_selection_mode!r}: must be 'all'")
        if warmup_steps < 0:
            raise InvalidArgument(f"warmup_steps={warmup_steps!r}: must be 0 or more")
        self.peer_selection_mode = peer_selection_mode
        self.warmup_steps = warmup_steps
        super().__init__(sync_interval_ms=sync_interval_ms, **options)


class AsyncModelAverageAlgorithmImpl(WarmUpImpl, of=AsyncModelAverageAlgorithm):
    """Asynchronous averaging at work on a group. Threads: the trainer's. Owns: its options and its phase."""

    def abort(self, bagua_ddp: Any) -> None:
        """Ends the averaging, once all ranks have called this; its last average is in the weights then. For after the
        training, or an evaluation. Does nothing in the warm-up, or where it has ended.

        Args:
          bagua_ddp: the wrapped module, or its `bagua_ddp`.

        Raises:
          DeadlineExceeded: not all ranks have called it in time.
        """
        machinery(bagua_ddp).stop_averaging()

    def resume(self, bagua_ddp: Any) -> None:
        """Goes on with averaging; all ranks must call it. Does nothing in the warm-up, or where it goes on anyway.

        Args:
          bagua_ddp: the wrapped module, or its `bagua_ddp`.
        """
        machinery(bagua_ddp).resume_averaging()


def machinery(wrapped: Any) -> Any:
    """What keeps a wrapped module's ranks together.

    Args:
      wrapped: the module, an object whose `inner` it is, or itself.

    Raises:
      InvalidArgument: it is neither.
    """
    for candidate in (wrapped, getattr(wrapped, "bagua_ddp", None), getattr(wrapped, "inner", None)):
        if hasattr(candidate, "stop_averaging"):
            return candidate
    raise InvalidArgument(f"bagua_ddp: must be a module wrapped with with_bagua, is a {type(wrapped).__name__}")


GlobalAlgorithmRegistry.register("async", AsyncModelAverageAlgorithm)
