"""What can be appended to a bucket, and what the append methods return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from pelton import _C
from pelton._training import _session

if TYPE_CHECKING:
    from pelton._training.communication import BaguaProcessGroup

_CODECS = {"MinMaxUInt8": "min_max_uint8"}  # Bagua's names


@dataclass
class Operation:
    """One operation of a bucket: an algorithm of the runtime with its options, or a function of the user's.

    Threads: a value. Owns: references to what the user gave.
    """

    name: str  # for reports
    algorithm: str = ""
    options: dict[str, str] = field(default_factory=dict)
    function: Callable[[str], None] | None = None
    group: BaguaProcessGroup | None = None
    peer_weight: torch.Tensor | None = None  # takes the outcome
    replicas: dict[str, torch.Tensor] = field(default_factory=dict)  # state that the user keeps
    control: _C.AveragingControl | None = None

    @property
    def works_in_bucket(self) -> bool:
        """Whether its outcome is in the bucket; else the bucket's tensors stay as they are meanwhile."""
        return self.peer_weight is None and self.control is None


class DecentralizedSynchronous:
    """A decentralized operation of a bucket. Threads: the trainer's. Owns: nothing."""

    def __init__(self, peer_weight: torch.Tensor) -> None:
        self._peer_weight = peer_weight

    def copy_back_peer_weight(self, backend_bucket: Any) -> None:
        """Copies what the last round left in the peer weight to the bucket's tensors.

        Args:
          backend_bucket: the bucket that it was appended to, or that one's `backend_bucket`.
        """
        bucket = getattr(backend_bucket, "bucket", backend_bucket)
        bucket.read_from(self._peer_weight)


class AsynchronousModelAverage:
    """An average that is taken beside training. Threads: any. Owns: the lock of the weights."""

    def __init__(self, control: _C.AveragingControl) -> None:
        self.control = control

    def lock_weight(self) -> None:
        """Keeps the average from changing weights until `unlock_weight`. Blocks: while it does.

        Raises:
          FailedPrecondition: this thread has locked them.
          DeadlineExceeded: they were not unlocked in time.
        """
        self.control.lock_weight(_session.current().timeout_s)

    def unlock_weight(self) -> None:
        """Lets it change weights again.

        Raises:
          FailedPrecondition: they are not locked.
        """
        self.control.unlock_weight()

    def abort(self) -> None:
        """Asks for its end, which comes when all ranks have asked. Not a call that waits."""
        self.control.abort()

    def reset(self) -> None:
        """Takes the end back. To be called by all ranks, between the same two rounds."""
        self.control.reset()

    def get_status(self) -> bool:
        """Whether it goes on, as the ranks agreed in the last round."""
        return self.control.get_status()


def text_of(flag: bool) -> str:
    """A flag as the runtime's options have it."""
    return "true" if flag else "false"


def codec_named(compression: str) -> str:
    """The runtime's name of a codec that Bagua or Pelton knows by `compression`."""
    return _CODECS.get(compression, compression)
