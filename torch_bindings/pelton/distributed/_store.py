"""A store of torch.distributed on the job's coordinator."""

from __future__ import annotations

import datetime

from pelton import _C
from pelton._training import _session
from pelton.errors import InvalidArgument


class Store(_C.Store):
    """Keys and values that all ranks of the job see, kept by its coordinator until the job ends.

    It takes any place of a `torch.distributed.TCPStore` and needs no port of its own; a wait for a key ends at once
    when a rank has died that might have set it.

    Threads: any. Owns: nothing; keeps the backend alive.
    """

    def __init__(self, timeout: datetime.timedelta = datetime.timedelta(seconds=300)) -> None:
        """Opens the store of the job that `pelton.torch_api.init_process_group` has joined.

        Args:
          timeout: of each later operation that does not bring its own.

        Raises:
          FailedPrecondition: the process group is not initialised.
          InvalidArgument: the timeout is not positive.
        """
        if timeout <= datetime.timedelta(0):
            raise InvalidArgument(f"timeout={timeout}: must be positive")
        super().__init__(_session.current().backend, timeout.total_seconds())
