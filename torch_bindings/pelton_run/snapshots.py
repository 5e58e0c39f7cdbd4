"""Memory of the launcher in which ranks keep snapshots of their training, so that it outlives them."""

from __future__ import annotations

import os

BUFFERS_VARIABLE = "PELTON_SNAPSHOT_BUFFERS"  # a rank's descriptors, with commas between them
RESTARTS_VARIABLE = "PELTON_RESTART_COUNT"  # how often the job's ranks have been started again
BUFFERS_NAME = "pelton-snapshot"  # which the kernel shows of their memory
# One snapshot is being made while another rank may still be at the one before it, and hold the two before that alone.
BUFFERS_PER_RANK = 3
_SEQUENCE_AT = 8  # of the word that is not 0 where a buffer holds a snapshot (_training/checkpoint/_buffers.py)


class SnapshotBuffers:
    """Some pieces of anonymous memory for each rank; what lies in them is the ranks' own affair.

    The kernel frees them with the last process that has them open, so that nothing is left of a job.
    Threads: the launcher's. Owns: the descriptors.
    """

    def __init__(self, size: int) -> None:
        """Args:
        size: number of ranks.

        Raises:
          OSError: there are no more descriptors.
        """
        self._open: list[int] = []
        try:
            for _ in range(BUFFERS_PER_RANK * size):
                self._open.append(os.memfd_create(BUFFERS_NAME))
        except OSError:
            self.close()
            raise

    def of(self, local_rank: int) -> tuple[int, ...]:
        """The descriptors that a rank is to inherit, under the numbers that they have here."""
        first = BUFFERS_PER_RANK * local_rank
        return tuple(self._open[first : first + BUFFERS_PER_RANK])

    def variables_of(self, local_rank: int) -> dict[str, str]:
        """By which a rank finds them."""
        return {BUFFERS_VARIABLE: ",".join(map(str, self.of(local_rank)))}

    def holds(self, local_rank: int) -> bool:
        """Whether a rank has left a snapshot that counts.

        Args:
          local_rank: the rank's number on this node.
        """
        return any(any(os.pread(descriptor, 8, _SEQUENCE_AT)) for descriptor in self.of(local_rank))

    def close(self) -> None:
        """Gives them up. Idempotent."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()
