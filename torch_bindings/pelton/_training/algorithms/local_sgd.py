"""Local SGD: every rank steps by itself, and now and then all take the mean of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pelton._training.algorithms._options import compression, to_text
from pelton._training.algorithms.base import Algorithm, AlgorithmImpl, GlobalAlgorithmRegistry, RegisteredAlgorithm
from pelton.errors import InvalidArgument

if TYPE_CHECKING:
    from pelton._training.communication import BaguaProcessGroup


class LocalSGDAlgorithmImpl(AlgorithmImpl):
    """Local SGD at work on a group. Threads: the trainer's. Owns: its options and its phase."""

    def __init__(self, process_group: BaguaProcessGroup, options: dict[str, str], warmup_steps: int = 0) -> None:
        """Args:
        process_group: the ranks that take part.
        options: of the runtime's `local_sgd`.
        warmup_steps: see `PostLocalSGDAlgorithm`.
        """
        super().__init__(process_group)
        self.interval = int(options["interval"])
        self._options = options
        self.warmup_steps = warmup_steps
        self._steps = 0
        self._is_warm = warmup_steps == 0

    def step_is_complete(self) -> None:
        """Counts it."""
        self._steps += 1

    def phase_is_over(self) -> bool:
        """Whether the warm-up's last step has been taken."""
        return self._is_warm != (self._steps >= self.warmup_steps)

    def need_reset(self) -> bool:
        """True once, after the warm-up's last step."""
        is_over = self.phase_is_over()
        self._is_warm = self._steps >= self.warmup_steps
        return is_over

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `gradient_allreduce` in the warm-up, then its `local_sgd`."""
        if not self._is_warm:
            return RegisteredAlgorithm(
                "gradient_allreduce", {"average": "true"}, needs_every_parameter_in_an_optimizer=True
            )
        return RegisteredAlgorithm("local_sgd", self._options, needs_every_parameter_in_an_optimizer=True)

    def state_dict(self) -> dict[str, Any]:
        """How far the warm-up is."""
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from where `state_dict` was."""
        self._steps = int(state["steps"])
        self._is_warm = self._steps >= self.warmup_steps


class LocalSGDAlgorithm(Algorithm):
    """After each `interval`-th optimizer step, those inside `no_sync` not counted, weights become the mean of all
    ranks'. Every parameter must be in an optimizer; its state stays each rank's own.

    With a codec the ranks exchange, encoded, how far they have come since the last mean, and all continue from that
    mean plus the mean of what was decoded.

    Shape: weights keep theirs. Threads: a value. Owns: its options.
    Source: Stich, arXiv 1805.09767.
    """

    def __init__(
        self,
        interval: int = 8,
        hierarchical: bool = True,
        codec: str | None = None,
        codec_options: Mapping[str, object] | None = None,
        error_feedback: bool | None = None,
    ) -> None:
        """Args:
        interval: Units: steps.
        hierarchical: with a codec, average inside each host first, in full precision; only the hosts' leaders exchange
          messages.
        codec: how messages are encoded; None for full precision.
        codec_options: the codec's.
        error_feedback: add what a message lacks to the next; None where the codec needs it.
        """
        self.interval = interval
        self.hierarchical = hierarchical
        self.compression = compression(codec, codec_options, error_feedback)

    def reify(self, process_group: BaguaProcessGroup) -> LocalSGDAlgorithmImpl:
        """Puts it to work on a group."""
        return LocalSGDAlgorithmImpl(process_group, self._options())

    def _options(self) -> dict[str, str]:
        return {**to_text(interval=self.interval, hierarchical=self.hierarchical), **self.compression}


class PostLocalSGDAlgorithm(LocalSGDAlgorithm):
    """Gradient allreduce for a while, then local SGD.

    Shape: as `LocalSGDAlgorithm`. Threads: a value. Owns: its options.
    Source: Lin et al., arXiv 1808.07217.
    """

    def __init__(
        self,
        warmup_steps: int = 100,
        interval: int = 8,
        hierarchical: bool = True,
        codec: str | None = None,
        codec_options: Mapping[str, object] | None = None,
        error_feedback: bool | None = None,
    ) -> None:
        """Args:
        warmup_steps: steps with gradient allreduce, those inside `no_sync` not counted. Units: steps.
        interval: between means of weights after that. Units: steps.
        hierarchical: see `LocalSGDAlgorithm`, as the others.
        codec: see there.
        codec_options: see there.
        error_feedback: see there.

        Raises:
          InvalidArgument: there is no warm-up.
        """
        if warmup_steps < 1:
            raise InvalidArgument(f"warmup_steps={warmup_steps}: must be above 0; without any: LocalSGDAlgorithm")
        super().__init__(interval, hierarchical, codec, codec_options, error_feedback)
        self.warmup_steps = warmup_steps

    def reify(self, process_group: BaguaProcessGroup) -> LocalSGDAlgorithmImpl:
        """Puts it to work on a group."""
        return LocalSGDAlgorithmImpl(process_group, self._options(), self.warmup_steps)


GlobalAlgorithmRegistry.register("local_sgd", LocalSGDAlgorithm, "local steps; now and then the mean of all weights")
GlobalAlgorithmRegistry.register("post_local_sgd", PostLocalSGDAlgorithm, "gradient_allreduce, later local_sgd")
