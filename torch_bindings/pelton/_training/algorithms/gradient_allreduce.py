"""Gradient allreduce: every rank steps with the mean (or the sum) of all ranks' gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pelton._training.algorithms.base import (
    Algorithm,
    AlgorithmImpl,
    GlobalAlgorithmRegistry,
    RegisteredAlgorithm,
)

if TYPE_CHECKING:
    from pelton._training.bucket import BaguaBucket
    from pelton._training.communication import BaguaProcessGroup


class GradientAllReduceAlgorithmImpl(AlgorithmImpl):
    """Gradient allreduce at work on a group. Threads: the trainer's. Owns: its options."""

    def __init__(self, process_group: BaguaProcessGroup, hierarchical: bool = False, average: bool = True) -> None:
        """Args:
        process_group: the ranks that take part.
        hierarchical: changes nothing; see `GradientAllReduceAlgorithm`.
        average: divide the sum by the number of ranks.
        """
        super().__init__(process_group)
        self.hierarchical = hierarchical
        self.average = average

    def init_operations(self, _: Any, bucket: BaguaBucket) -> None:
        """For classes derived from this one that work by hooks: the same operation.

        Args:
          bucket: one of the buckets.
        """
        bucket.clear_ops()
        bucket.append_centralized_synchronous_op(
            hierarchical=self.hierarchical, average=self.average, group=self.process_group
        )

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `gradient_allreduce`."""
        return RegisteredAlgorithm("gradient_allreduce", {"average": "true" if self.average else "false"})


class GradientAllReduceAlgorithm(Algorithm):
    """Gradient allreduce. Threads: a value. Owns: its options.

    Shape: gradients keep theirs. With `average` each becomes (g_0 + g_1 + ... + g_{n-1}) / n, bitwise the same on all
    ranks. On one host it is added in rank order, and equal to that of one process adding in this order.
    """

    def __init__(self, hierarchical: bool = False, average: bool = True) -> None:
        """Args:
        hierarchical: changes nothing. Where a group has several ranks on some of several hosts, its communicator
          reduces inside each host first, whatever this says: the mean is that over the ranks, and less is sent.
        average: divide the sum by the number of ranks.
        """
        self.hierarchical = hierarchical
        self.average = average

    def __repr__(self) -> str:
        given = [f"{name}={value}" for name, value, default in self._options() if value != default]
        return f"{type(self).__name__}({', '.join(given)})"

    def _options(self) -> list[tuple[str, bool, bool]]:
        return [("hierarchical", self.hierarchical, False), ("average", self.average, True)]

    def reify(self, process_group: BaguaProcessGroup) -> GradientAllReduceAlgorithmImpl:
        """Puts it to work on a group."""
        return GradientAllReduceAlgorithmImpl(process_group, hierarchical=self.hierarchical, average=self.average)


GlobalAlgorithmRegistry.register(
    "gradient_allreduce", GradientAllReduceAlgorithm, "mean or sum of all ranks' gradients, before each step"
)
