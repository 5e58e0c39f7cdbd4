"""Gradient allreduce: every rank steps with the mean (or the sum) of all ranks' gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pelton._training.algorithms.base import GlobalAlgorithmRegistry, NamedAlgorithm, RegisteredAlgorithm, RuntimeImpl

if TYPE_CHECKING:
    from pelton._training.bucket import BaguaBucket


class GradientAllReduceAlgorithm(NamedAlgorithm):
    """Gradient allreduce. Threads: a value. Owns: its options.

    Shape: gradients keep theirs. With `average` each becomes (g_0 + g_1 + ... + g_{n-1}) / n, bitwise the same on all
    ranks. On one host it is added in rank order, and equal to that of one process adding in this order.
    """

    runtime_name = "gradient_allreduce"

    def __init__(self, hierarchical: bool = False, average: bool = True, **options: Any) -> None:
        """Args:
        hierarchical: changes nothing. Where a group has several ranks on some of several hosts, its communicator
          reduces inside each host first, whatever this says: the mean is that over the ranks, and less is sent.
        average: divide the sum by the number of ranks.
        **options: others of the runtime's `gradient_allreduce`.
        """
        super().__init__(hierarchical=hierarchical, average=average, **options)


class GradientAllReduceAlgorithmImpl(RuntimeImpl, of=GradientAllReduceAlgorithm):
    """Gradient allreduce at work on a group. Threads: the trainer's. Owns: its options."""

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
        """The runtime's `gradient_allreduce`; said beside the hook, which it goes before in this class alone."""
        return super().registered()


GlobalAlgorithmRegistry.register("gradient_allreduce", GradientAllReduceAlgorithm)
