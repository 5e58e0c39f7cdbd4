"""Decentralized averaging of weights: with all ranks or one peer a round, and in low precision on a ring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pelton._training.algorithms._options import compression, to_text
from pelton._training.algorithms.base import Algorithm, AlgorithmImpl, GlobalAlgorithmRegistry, RegisteredAlgorithm

if TYPE_CHECKING:
    from pelton._training.communication import BaguaProcessGroup


class DecentralizedAlgorithmImpl(AlgorithmImpl):
    """Decentralized averaging at work on a group. Threads: the trainer's. Owns: its options."""

    def __init__(
        self,
        process_group: BaguaProcessGroup,
        hierarchical: bool = True,
        peer_selection_mode: str = "all",
        communication_interval: int = 1,
        global_interval: int = 0,
    ) -> None:
        """Args:
        process_group: the ranks that take part.
        hierarchical: see `DecentralizedAlgorithm`, as the others.
        peer_selection_mode: see there.
        communication_interval: see there.
        global_interval: see there.
        """
        super().__init__(process_group)
        self.hierarchical = hierarchical
        self.peer_selection_mode = peer_selection_mode
        self.communication_interval = communication_interval
        self.global_interval = global_interval

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `decentralized`."""
        options = to_text(
            hierarchical=self.hierarchical,
            peer_selection_mode=self.peer_selection_mode,
            communication_interval=self.communication_interval,
            global_interval=self.global_interval,
        )
        return RegisteredAlgorithm("decentralized", options)


class DecentralizedAlgorithm(Algorithm):
    """Each step x becomes the mean of x over some ranks, taken while the forward and backward pass run; then the
    optimizer applies the gradient taken at the x before.

    Shape: weights keep theirs. Threads: a value. Owns: its options.
    Source: Lian et al., arXiv 1705.09056; Bagua, arXiv 2107.01499.
    """

    def __init__(
        self,
        hierarchical: bool = True,
        peer_selection_mode: str = "all",
        communication_interval: int = 1,
        global_interval: int = 0,
    ) -> None:
        """Args:
        hierarchical: average inside each host first; peers are hosts then.
        peer_selection_mode: "all" for the mean of all ranks; "shift_one" for a peer that changes from round to round,
          with which one rank sits out where their number is odd; or a peer that the coordinator chooses:
          "random_matching", "latency_aware" (from heartbeats' round trips), or "avoid_stragglers": a rank that arrives
          at about the same time, so that nobody waits for a slow one (with `hierarchical`, for a slow host). Ranks need
          not take equally many steps then; `model.bagua_ddp.consolidate()` brings them together at the end.
        communication_interval: a round at the first step and each so many steps later. Units: steps; what happens
          inside `no_sync` is none.
        global_interval: with one peer a round, each so many rounds the mean of all ranks instead; 0: never. Not with
          "avoid_stragglers". Units: rounds.
        """
        self.hierarchical = hierarchical
        self.peer_selection_mode = peer_selection_mode
        self.communication_interval = communication_interval
        self.global_interval = global_interval

    def reify(self, process_group: BaguaProcessGroup) -> DecentralizedAlgorithmImpl:
        """Puts it to work on a group."""
        return DecentralizedAlgorithmImpl(
            process_group,
            self.hierarchical,
            self.peer_selection_mode,
            self.communication_interval,
            self.global_interval,
        )


class LowPrecisionDecentralizedAlgorithmImpl(AlgorithmImpl):
    """The ring in low precision at work on a group. Threads: the trainer's. Owns: its options."""

    def __init__(
        self,
        process_group: BaguaProcessGroup,
        hierarchical: bool = True,
        communication_interval: int = 1,
        codec: str | None = None,
        codec_options: Mapping[str, object] | None = None,
    ) -> None:
        """Args:
        process_group: the ranks that take part.
        hierarchical: see `LowPrecisionDecentralizedAlgorithm`, as the others.
        communication_interval: see there.
        codec: see there.
        codec_options: see there.
        """
        super().__init__(process_group)
        self.hierarchical = hierarchical
        self.communication_interval = communication_interval
        self._compression = compression(codec, codec_options)

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `low_precision_decentralized`."""
        options = to_text(hierarchical=self.hierarchical, communication_interval=self.communication_interval)
        return RegisteredAlgorithm("low_precision_decentralized", {**options, **self._compression})


class LowPrecisionDecentralizedAlgorithm(Algorithm):
    """After each step every rank tells its two neighbours on a ring, in encoded messages, by how much its weights
    have changed, and moves towards them. Every parameter must be in an optimizer.

    Shape: weights keep theirs. Threads: a value. Owns: its options.
    Source: Tang et al., arXiv 1803.06443; Bagua, arXiv 2107.01499.
    """

    def __init__(
        self,
        hierarchical: bool = True,
        communication_interval: int = 1,
        codec: str | None = None,
        codec_options: Mapping[str, object] | None = None,
    ) -> None:
        """Args:
        hierarchical: average inside each host first; the ring is one of hosts then.
        communication_interval: a round after the first step and each so many steps later. Units: steps; those inside
          `no_sync` do not count.
        codec: how messages are encoded; None for `min_max_uint8`, Bagua's.
        codec_options: the codec's.
        """
        self.hierarchical = hierarchical
        self.communication_interval = communication_interval
        self.codec = codec
        self.codec_options = codec_options

    def reify(self, process_group: BaguaProcessGroup) -> LowPrecisionDecentralizedAlgorithmImpl:
        """Puts it to work on a group."""
        return LowPrecisionDecentralizedAlgorithmImpl(
            process_group, self.hierarchical, self.communication_interval, self.codec, self.codec_options
        )


GlobalAlgorithmRegistry.register("decentralized", DecentralizedAlgorithm, "mean of weights over all ranks or one peer")
GlobalAlgorithmRegistry.register(
    "low_precision_decentralized", LowPrecisionDecentralizedAlgorithm, "weights' changes on a ring in 8-bit messages"
)
