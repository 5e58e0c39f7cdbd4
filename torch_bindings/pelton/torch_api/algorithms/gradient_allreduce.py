"""Gradient allreduce: every rank steps with the mean (or the sum) of all ranks' gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pelton.errors import Unsupported
from pelton.torch_api.algorithms.base import (
    Algorithm,
    AlgorithmImpl,
    GlobalAlgorithmRegistry,
    RegisteredAlgorithm,
)

if TYPE_CHECKING:
    from pelton.torch_api.communication import BaguaProcessGroup


class GradientAllReduceAlgorithmImpl(AlgorithmImpl):
    """Gradient allreduce at work on a group. Threads: the trainer's. Owns: its options."""

    def __init__(self, process_group: BaguaProcessGroup, hierarchical: bool = False, average: bool = True) -> None:
        """Args:
          process_group: the ranks that take part.
          hierarchical: reduce inside each host first; not offered yet.
          average: divide the sum by the number of ranks.

        Raises:
          Unsupported: hierarchical is set.
        """
        super().__init__(process_group)
        if hierarchical:
            raise Unsupported("gradient_allreduce: hierarchical=True is not offered yet")
        self.hierarchical = hierarchical
        self.average = average

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `gradient_allreduce`."""
        return RegisteredAlgorithm("gradient_allreduce", {"average": "true" if self.average else "false"})


class GradientAllReduceAlgorithm(Algorithm):
    """Gradient allreduce. Threads: a value. Owns: its options.

    Shape: gradients keep theirs. With `average` each becomes (g_0 + g_1 + ... + g_{n-1}) / n, added in rank order,
    so that the result is bitwise the same on all ranks and equal to that of one process adding in this order.
    """

    def __init__(self, hierarchical: bool = False, average: bool = True) -> None:
        """Args:
        hierarchical: reduce inside each host first; not offered yet.
        average: divide the sum by the number of ranks.
        """
        self.hierarchical = hierarchical
        self.average = average

    def reify(self, process_group: BaguaProcessGroup) -> GradientAllReduceAlgorithmImpl:
        """Puts it to work on a group.

        Raises:
          Unsupported: hierarchical is set.
        """
        return GradientAllReduceAlgorithmImpl(process_group, hierarchical=self.hierarchical, average=self.average)


GlobalAlgorithmRegistry.register(
    "gradient_allreduce", GradientAllReduceAlgorithm, "mean or sum of all ranks' gradients, before each step"
)
