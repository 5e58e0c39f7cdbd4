"""ByteGrad: every rank steps with the mean (or sum) of all ranks' gradients, exchanged in encoded messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pelton._training.algorithms._options import compression, to_text
from pelton._training.algorithms.base import Algorithm, AlgorithmImpl, GlobalAlgorithmRegistry, RegisteredAlgorithm

if TYPE_CHECKING:
    from pelton._training.communication import BaguaProcessGroup


class ByteGradAlgorithmImpl(AlgorithmImpl):
    """ByteGrad at work on a group. Threads: the trainer's. Owns: its options."""

    def __init__(
        self,
        process_group: BaguaProcessGroup,
        hierarchical: bool = True,
        average: bool = True,
        codec: str | None = None,
        codec_options: Mapping[str, object] | None = None,
        error_feedback: bool | None = None,
    ) -> None:
        """Args:
        process_group: the ranks that take part.
        hierarchical: see `ByteGradAlgorithm`, as the others.
        average: see there.
        codec: see there.
        codec_options: see there.
        error_feedback: see there.
        """
        super().__init__(process_group)
        self.hierarchical = hierarchical
        self.average = average
        self._compression = compression(codec, codec_options, error_feedback)

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `bytegrad`."""
        options = to_text(hierarchical=self.hierarchical, average=self.average)
        return RegisteredAlgorithm("bytegrad", {**options, **self._compression})


class ByteGradAlgorithm(Algorithm):
    """ByteGrad: a scatter-gather allreduce of encoded chunks; all ranks hold the same bits.

    Shape: gradients keep theirs. Threads: a value. Owns: its options.
    Source: Bagua, arXiv 2107.01499.
    """

    def __init__(
        self,
        hierarchical: bool = True,
        average: bool = True,
        codec: str | None = None,
        codec_options: Mapping[str, object] | None = None,
        error_feedback: bool | None = None,
    ) -> None:
        """Args:
        hierarchical: reduce inside each host first, in full precision; only the hosts' leaders exchange messages.
        average: divide the sum by the number of ranks.
        codec: how messages are encoded, one of the runtime's codecs; None for `min_max_uint8`, Bagua's.
        codec_options: the codec's.
        error_feedback: add to each message what the last one lacked; None where the codec needs it.
        """
        self.hierarchical = hierarchical
        self.average = average
        self.codec = codec
        self.codec_options = codec_options
        self.error_feedback = error_feedback

    def reify(self, process_group: BaguaProcessGroup) -> ByteGradAlgorithmImpl:
        """Puts it to work on a group."""
        return ByteGradAlgorithmImpl(
            process_group, self.hierarchical, self.average, self.codec, self.codec_options, self.error_feedback
        )


GlobalAlgorithmRegistry.register("bytegrad", ByteGradAlgorithm, "mean of all ranks' gradients in 8-bit messages")
