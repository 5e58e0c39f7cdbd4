"""Local SGD: every rank steps by itself, and now and then all take the mean of their weights."""

from __future__ import annotations

from typing import Any

from pelton._training.algorithms.base import GlobalAlgorithmRegistry, NamedAlgorithm, RuntimeImpl, WarmUpImpl
from pelton.errors import InvalidArgument


class LocalSGDAlgorithm(NamedAlgorithm):
    """After each `interval`-th optimizer step, those inside `no_sync` not counted, weights become the mean of all
    ranks'. Every parameter must be in an optimizer; its state stays each rank's own.

    With a codec the ranks exchange, encoded, how far they have come since the last mean, and all continue from that
    mean plus the mean of what was decoded.

    Shape: weights keep theirs. Threads: a value. Owns: its options.
    Source: Stich, arXiv 1805.09767.
    """

    runtime_name = "local_sgd"
    needs_every_parameter_in_an_optimizer = True

    def __init__(self, interval: int = 8, **options: Any) -> None:
        """Args:
        interval: from one mean to the next. Units: steps.
        **options: others of the runtime's `local_sgd`.
        """
        super().__init__(interval=interval, **options)


class LocalSGDAlgorithmImpl(RuntimeImpl, of=LocalSGDAlgorithm):
    """Local SGD at work on a group. Threads: the trainer's. Owns: its options."""


class PostLocalSGDAlgorithm(LocalSGDAlgorithm):
    """Gradient allreduce for a while, then local SGD.

    Shape: as `LocalSGDAlgorithm`. Threads: a value. Owns: its options.
    Source: Lin et al., arXiv 1808.07217.
    """

    own_arguments = ("warmup_steps",)

    def __init__(self, warmup_steps: int = 100, interval: int = 8, **options: Any) -> None:
        """Args:
        warmup_steps: steps with gradient allreduce, those inside `no_sync` not counted. Units: steps.
        interval: from one mean to the next after that. Units: steps.
        **options: others of the runtime's `local_sgd`.

        Raises:
          InvalidArgument: there is no warm-up, or as `RuntimeAlgorithm`.
        """
        if warmup_steps < 1:
            raise InvalidArgument(f"warmup_steps={warmup_steps}: must be above 0; without any: LocalSGDAlgorithm")
        self.warmup_steps = warmup_steps
        super().__init__(interval, **options)


class PostLocalSGDAlgorithmImpl(WarmUpImpl, of=PostLocalSGDAlgorithm):
    """Post-local SGD at work on a group. Threads: the trainer's. Owns: its options and its phase."""


GlobalAlgorithmRegistry.register("local_sgd", LocalSGDAlgorithm)
GlobalAlgorithmRegistry.register("post_local_sgd", PostLocalSGDAlgorithm, "gradient_allreduce, later local_sgd")
