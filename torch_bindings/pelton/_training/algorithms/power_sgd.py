"""PowerSGD: gradients of matrices are exchanged as products of two thin ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pelton._training.algorithms._options import to_text
from pelton._training.algorithms.base import Algorithm, AlgorithmImpl, GlobalAlgorithmRegistry, RegisteredAlgorithm

if TYPE_CHECKING:
    from pelton._training.communication import BaguaProcessGroup


class PowerSGDAlgorithmImpl(AlgorithmImpl):
    """PowerSGD at work on a group. Threads: the trainer's. Owns: its options."""

    def __init__(
        self,
        process_group: BaguaProcessGroup,
        rank: int = 2,
        min_compression: float | None = None,
        start_round: int = 256,
    ) -> None:
        """Args:
        process_group: the ranks that take part.
        rank: see `PowerSGDAlgorithm`, as the others.
        min_compression: see there.
        start_round: see there.
        """
        super().__init__(process_group)
        self._options = to_text(rank=rank, min_compression=min_compression, start_round=start_round)

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `power_sgd`."""
        return RegisteredAlgorithm("power_sgd", self._options)


class PowerSGDAlgorithm(Algorithm):
    """Gradient allreduce in which a parameter of two dimensions and more is the matrix [shape[0], rest], exchanged as
    two factors of `rank` columns; what they lack is added to the next gradient. Others are exchanged as they are.

    Shape: gradients keep theirs. Threads: a value. Owns: its options.
    Source: Vogels et al., arXiv 1905.13727, algorithm 1 and the error feedback of algorithm 2.
    """

    def __init__(self, rank: int = 2, min_compression: float | None = None, start_round: int = 256) -> None:
        """Args:
        rank: columns of the factors.
        min_compression: a matrix is compressed where that makes it smaller by this factor; None for the runtime's
          default, 2.
        start_round: the rounds before it are exchanged in full precision: gradients change most in a training's
          beginning, and what approximations of low rank lose there is not made up for later. 1: none are.
        """
        self.rank = rank
        self.min_compression = min_compression
        self.start_round = start_round

    def reify(self, process_group: BaguaProcessGroup) -> PowerSGDAlgorithmImpl:
        """Puts it to work on a group."""
        return PowerSGDAlgorithmImpl(process_group, self.rank, self.min_compression, self.start_round)


GlobalAlgorithmRegistry.register("power_sgd", PowerSGDAlgorithm, "mean of all ranks' gradients, of low rank")
