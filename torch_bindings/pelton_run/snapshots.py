"""Memory of the launcher in which ranks keep snapshots of their training, so that it outlives them."""

from __future__ import annotations

import os

BUFFERS_VARIABLE = "PELTON_SNAPSHOT_BUFFERS"  # a rank's two descriptors, with a comma between them
RESTARTS_VARIABLE = "PELTON_RESTART_COUNT"  # how often the job's ranks have been started again
BUFFERS_NAME = "pelton-snapshot"  # which the kernel shows of their memory


class SnapshotBuffers:
    """Two pieces of anonymous memory for each rank; what lies in them is the ranks' own affair.

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
            for _ in range(2 * size):
                self._open.append(os.memfd_create(BUFFERS_NAME))
        except OSError:
            self.close()
            raise

    def of(self, local_rank: int) -> tuple[int, int]:
        """The descriptors that a rank is to inherit, under the numbers that they have here."""
        return self._open[2 * local_rank], self._open[2 * local_rank + 1]

    def variables_of(self, local_rank: int) -> dict[str, str]:
        """By which a rank finds them."""
        return {BUFFERS_VARIABLE: ",".join(map(str, self.of(local_rank)))}

    def close(self) -> None:
        """Gives them up. Idempotent."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()
