"""Asynchronous model averaging: ranks train by themselves, and beside it their weights are averaged again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pelton._training.algorithms._options import to_text
from pelton._training.algorithms.base import Algorithm, AlgorithmImpl, GlobalAlgorithmRegistry, RegisteredAlgorithm
from pelton.errors import InvalidArgument

if TYPE_CHECKING:
    from pelton._training.communication import BaguaProcessGroup


class AsyncModelAverageAlgorithmImpl(AlgorithmImpl):
    """Asynchronous averaging at work on a group. Threads: the trainer's. Owns: its options and its phase."""

    def __init__(
        self,
        process_group: BaguaProcessGroup,
        peer_selection_mode: str = "all",
        sync_interval_ms: int = 500,
        warmup_steps: int = 0,
    ) -> None:
        """Args:
        process_group: the ranks that take part.
        peer_selection_mode: see `AsyncModelAverageAlgorithm`, as the others.
        sync_interval_ms: see there.
        warmup_steps: see there.
        """
        super().__init__(process_group)
        self.peer_selection_mode = peer_selection_mode
        self.sync_interval_ms = sync_interval_ms
        self.warmup_steps = warmup_steps
        self.step_id = 0
        self._is_warm = warmup_steps == 0

    def step_is_complete(self) -> None:
        """Counts it."""
        self.step_id += 1

    def phase_is_over(self) -> bool:
        """Whether the warm-up's last step has been taken."""
        return self._is_warm != (self.step_id >= self.warmup_steps)

    def need_reset(self) -> bool:
        """True once, after the warm-up's last step."""
        is_over = self.phase_is_over()
        self._is_warm = self.step_id >= self.warmup_steps
        return is_over

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `gradient_allreduce` in the warm-up, then its `async_model_average`."""
        if not self._is_warm:
            return RegisteredAlgorithm("gradient_allreduce", {"average": "true"})
        return RegisteredAlgorithm("async_model_average", to_text(sync_interval_ms=self.sync_interval_ms))

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

    def state_dict(self) -> dict[str, Any]:
        """How far the warm-up is."""
        return {"step_id": self.step_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from where `state_dict` was."""
        self.step_id = int(state["step_id"])
        self._is_warm = self.step_id >= self.warmup_steps


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


class AsyncModelAverageAlgorithm(Algorithm):
    """Ranks need not take equally many steps. Each round adds to a rank's weights by how much the mean over all ranks
    differed from them when it began, so that what has been trained meanwhile is kept. It stops by agreement: `abort`
    ends it on all ranks after the same round, and a rank that has asked goes on taking part until all have.

    Shape: weights keep theirs. Threads: a value. Owns: its options.
    Source: Bagua, arXiv 2107.01499.
    """

    def __init__(self, peer_selection_mode: str = "all", sync_interval_ms: int = 500, warmup_steps: int = 0) -> None:
        """Args:
        peer_selection_mode: "all", the only one.
        sync_interval_ms: from the end of a round to the beginning of the next. Units: milliseconds.
        warmup_steps: steps with gradient allreduce before, those inside `no_sync` not counted. Units: steps.

        Raises:
          InvalidArgument: another mode, or a negative number.
        """
        if peer_selection_mode != "all":
            raise InvalidArgument(f"peer_selection_mode={peer_selection_mode!r}: must be 'all'")
        for name, value in {"sync_interval_ms": sync_interval_ms, "warmup_steps": warmup_steps}.items():
            if value < 0:
                raise InvalidArgument(f"{name}={value!r}: must be 0 or more")
        self.peer_selection_mode = peer_selection_mode
        self.sync_interval_ms = sync_interval_ms
        self.warmup_steps = warmup_steps

    def reify(self, process_group: BaguaProcessGroup) -> AsyncModelAverageAlgorithmImpl:
        """Puts it to work on a group."""
        return AsyncModelAverageAlgorithmImpl(
            process_group, self.peer_selection_mode, self.sync_interval_ms, self.warmup_steps
        )


GlobalAlgorithmRegistry.register("async", AsyncModelAverageAlgorithm, "weights averaged beside the training")
