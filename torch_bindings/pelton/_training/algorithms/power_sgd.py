"""PowerSGD: gradients of matrices are exchanged as products of two thin ones."""

from __future__ import annotations

from typing import Any

from pelton._training.algorithms.base import GlobalAlgorithmRegistry, NamedAlgorithm, RuntimeImpl


class PowerSGDAlgorithm(NamedAlgorithm):
    """Gradient allreduce in which a parameter of two dimensions and more is the matrix [shape[0], rest], exchanged as
    two factors of `rank` columns; what they lack is added to the next gradient. Others are exchanged as they are.

    The rounds before `start_round` are exchanged in full precision: gradients change most in a training's beginning,
    and what approximations of low rank lose there is not made up for later. 1: none are.

    Shape: gradients keep theirs. Threads: a value. Owns: its options.
    Source: Vogels et al., arXiv 1905.13727, algorithm 1 and the error feedback of algorithm 2.
    """

    runtime_name = "power_sgd"

    def __init__(self, rank: int = 2, **options: Any) -> None:
        """Args:
        rank: columns of the factors.
        **options: others of the runtime's `power_sgd`.
        """
        super().__init__(rank=rank, **options)


class PowerSGDAlgorithmImpl(RuntimeImpl, of=PowerSGDAlgorithm):
    """PowerSGD at work on a group. Threads: the trainer's. Owns: its options."""


GlobalAlgorithmRegistry.register("power_sgd", PowerSGDAlgorithm)
