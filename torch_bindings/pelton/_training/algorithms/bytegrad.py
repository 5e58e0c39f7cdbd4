"""ByteGrad: every rank steps with the mean (or sum) of all ranks' gradients, exchanged in encoded messages."""

from __future__ import annotations

from typing import Any

from pelton._training.algorithms.base import GlobalAlgorithmRegistry, NamedAlgorithm, RuntimeImpl


class ByteGradAlgorithm(NamedAlgorithm):
    """ByteGrad: a scatter-gather allreduce of encoded chunks; all ranks hold the same bits.

    Shape: gradients keep theirs. Threads: a value. Owns: its options.
    Source: Bagua, arXiv 2107.01499.
    """

    runtime_name = "bytegrad"

    def __init__(self, hierarchical: bool = True, average: bool = True, **options: Any) -> None:
        """Args:
        hierarchical: reduce inside each host first, in full precision; only the hosts' leaders exchange messages.
        average: divide the sum by the number of ranks.
        **options: others of the runtime's `bytegrad`.
        """
        super().__init__(hierarchical=hierarchical, average=average, **options)


class ByteGradAlgorithmImpl(RuntimeImpl, of=ByteGradAlgorithm):
    """ByteGrad at work on a group. Threads: the trainer's. Owns: its options."""


GlobalAlgorithmRegistry.register("bytegrad", ByteGradAlgorithm)
