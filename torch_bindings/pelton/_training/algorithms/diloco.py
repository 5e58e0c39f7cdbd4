"""DiLoCo: local steps, and now and then an outer step by what they changed on average; streaming, if asked for."""

from __future__ import annotations

from typing import Any

from pelton._training.algorithms.base import GlobalAlgorithmRegistry, NamedAlgorithm, RuntimeImpl
from pelton._warn import warn

_LATE = ("one_bit", "top_k")  # codecs that drop so much of a message that most of it comes in later ones


class DiLoCoAlgorithm(NamedAlgorithm):
    """Every `interval` optimizer steps, those inside `no_sync` not counted, an outer optimizer (SGD with Nesterov
    momentum) steps from the last common weights by the mean of what the ranks changed. Every parameter must be in an
    optimizer. With `fragments` a part of the model at a time; with `delay` the exchange goes on beside so many steps.

    Shape: weights keep theirs. Threads: a value. Owns: its options.
    Source: Douillard et al., DiLoCo, arXiv 2311.08105; Streaming DiLoCo, arXiv 2501.18512.
    """

    runtime_name = "diloco"
    needs_every_parameter_in_an_optimizer = True

    def __init__(self, interval: int = 100, **options: Any) -> None:
        """Args:
        interval: between the rounds of a fragment. Units: steps.
        **options: others of the runtime's `diloco`.
        """
        super().__init__(interval=interval, **options)
        codec, momentum = self.text_of("codec"), self.text_of("outer_momentum")
        if codec in _LATE and float(momentum) > 0:
            warn(
                f"DiLoCoAlgorithm: what codec={codec!r} drops comes rounds later, and outer_momentum={momentum} "
                "builds up on that: training is likely to diverge. Pass outer_momentum=0, or codec='block_int4'"
            )


class DiLoCoAlgorithmImpl(RuntimeImpl, of=DiLoCoAlgorithm):
    """DiLoCo at work on a group. Threads: the trainer's. Owns: its options."""


GlobalAlgorithmRegistry.register("diloco", DiLoCoAlgorithm)
