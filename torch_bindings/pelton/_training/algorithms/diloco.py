"""DiLoCo: local steps, and now and then an outer step by what they changed on average; streaming, if asked for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pelton._training.algorithms._options import compression, to_text
from pelton._training.algorithms.base import Algorithm, AlgorithmImpl, GlobalAlgorithmRegistry, RegisteredAlgorithm

if TYPE_CHECKING:
    from pelton._training.communication import BaguaProcessGroup


_LATE = ("one_bit", "top_k")  # codecs that drop so much of a message that most of it comes in later ones


class DiLoCoAlgorithmImpl(AlgorithmImpl):
    """DiLoCo at work on a group. Threads: the trainer's. Owns: its options."""

    def __init__(self, process_group: BaguaProcessGroup, options: dict[str, str]) -> None:
        """Args:
        process_group: the ranks that take part.
        options: of the runtime's `diloco`.
        """
        super().__init__(process_group)
        self._options = options

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `diloco`."""
        return RegisteredAlgorithm("diloco", self._options, needs_every_parameter_in_an_optimizer=True)


class DiLoCoAlgorithm(Algorithm):
    """Every `interval` optimizer steps, those inside `no_sync` not counted, an outer optimizer (SGD with Nesterov
    momentum) steps from the last common weights by the mean of what the ranks changed. Every parameter must be in an
    optimizer. With `fragments` a part of the model at a time; with `delay` the exchange goes on beside so many steps.

    Shape: weights keep theirs. Threads: a value. Owns: its options.
    Source: Douillard et al., DiLoCo, arXiv 2311.08105; Streaming DiLoCo, arXiv 2501.18512.
    """

    def __init__(
        self,
        interval: int = 100,
        outer_learning_rate: float = 0.7,
        outer_momentum: float = 0.9,
        fragments: int = 1,
        delay: int = 0,
        mix: float | None = None,
        hierarchical: bool = True,
        codec: str | None = None,
        codec_options: Mapping[str, object] | None = None,
        error_feedback: bool | None = None,
    ) -> None:
        """Args:
        interval: between the rounds of a fragment. Units: steps.
        outer_learning_rate: of the outer optimizer.
        outer_momentum: of the outer optimizer.
        fragments: parts of the model that take turns.
        delay: between a round's beginning and the merging of its result. Units: steps.
        mix: how much of the local weights is kept then, from 0 to 1; None for the runtime's default.
        hierarchical: with a codec, average inside each host first, in full precision; only the hosts' leaders exchange
          messages.
        codec: how what the ranks have changed is encoded, "block_int4" for instance; None for full precision.
        codec_options: the codec's.
        error_feedback: add what a message lacks to the next; None where the codec needs it.
        """
        self.options = to_text(
            interval=interval,
            outer_learning_rate=outer_learning_rate,
            outer_momentum=outer_momentum,
            fragments=fragments,
            delay=delay,
            mix=mix,
            hierarchical=hierarchical,
        )
        self.options.update(compression(codec, codec_options, error_feedback))
        if codec in _LATE and outer_momentum > 0:
            warnings.warn(
                f"DiLoCoAlgorithm: what codec={codec!r} drops comes rounds later, and outer_momentum={outer_momentum} "
                "builds up on that: training is likely to diverge. Pass outer_momentum=0, or codec='block_int4'",
                stacklevel=2,
            )

    def reify(self, process_group: BaguaProcessGroup) -> DiLoCoAlgorithmImpl:
        """Puts it to work on a group."""
        return DiLoCoAlgorithmImpl(process_group, self.options)


GlobalAlgorithmRegistry.register("diloco", DiLoCoAlgorithm, "local steps; now and then an outer step by their mean")
