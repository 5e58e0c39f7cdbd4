"""Decentralized averaging of weights: with all ranks or one peer a round, and in low precision on a ring."""

from __future__ import annotations

from typing import Any

from pelton._training.algorithms.base import GlobalAlgorithmRegistry, NamedAlgorithm, RuntimeImpl


class DecentralizedAlgorithm(NamedAlgorithm):
    """Each step x becomes the mean of x over some ranks, taken while the forward and backward pass run; then the
    optimizer applies the gradient taken at the x before.

    Peers are all ranks ("all"); or one that changes from round to round ("shift_one"), with which one rank sits out
    where their number is odd; or one that the coordinator chooses: "random_matching", "latency_aware" (from heartbeats'
    round trips), or "avoid_stragglers": a rank that arrives at about the same time, so that nobody waits for a slow one
    (with `hierarchical`, for a slow host). Ranks need not take equally many steps then;
    `model.bagua_ddp.consolidate()` brings them together at the end.

    Shape: weights keep theirs. Threads: a value. Owns: its options.
    Source: Lian et al., arXiv 1705.09056; Bagua, arXiv 2107.01499.
    """

    runtime_name = "decentralized"

    def __init__(
        self,
        hierarchical: bool = True,
        peer_selection_mode: str = "all",
        communication_interval: int = 1,
        **options: Any,
    ) -> None:
        """Args:
        hierarchical: average inside each host first; peers are hosts then.
        peer_selection_mode: see the class.
        communication_interval: a round at the first step and each so many steps later. Units: steps; what happens
          inside `no_sync` is none.
        **options: others of the runtime's `decentralized`.
        """
        super().__init__(
            hierarchical=hierarchical,
            peer_selection_mode=peer_selection_mode,
            communication_interval=communication_interval,
            **options,
        )


class DecentralizedAlgorithmImpl(RuntimeImpl, of=DecentralizedAlgorithm):
    """Decentralized averaging at work on a group. Threads: the trainer's. Owns: its options."""


class LowPrecisionDecentralizedAlgorithm(NamedAlgorithm):
    """After each step every rank tells its two neighbours on a ring, in encoded messages, by how much its weights
    have changed, and moves towards them. Every parameter must be in an optimizer.

    Shape: weights keep theirs. Threads: a value. Owns: its options.
    Source: Tang et al., arXiv 1803.06443; Bagua, arXiv 2107.01499.
    """

    runtime_name = "low_precision_decentralized"

    def __init__(self, hierarchical: bool = True, communication_interval: int = 1, **options: Any) -> None:
        """Args:
        hierarchical: average inside each host first; the ring is one of hosts then.
        communication_interval: a round after the first step and each so many steps later. Units: steps; those inside
          `no_sync` do not count.
        **options: others of the runtime's `low_precision_decentralized`.
        """
        super().__init__(hierarchical=hierarchical, communication_interval=communication_interval, **options)


class LowPrecisionDecentralizedAlgorithmImpl(RuntimeImpl, of=LowPrecisionDecentralizedAlgorithm):
    """The ring in low precision at work on a group. Threads: the trainer's. Owns: its options."""


GlobalAlgorithmRegistry.register("decentralized", DecentralizedAlgorithm)
GlobalAlgorithmRegistry.register("low_precision_decentralized", LowPrecisionDecentralizedAlgorithm)
