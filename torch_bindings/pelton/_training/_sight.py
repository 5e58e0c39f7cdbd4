"""What people see of this rank from outside: a door for tools, and the stacks of its threads."""

from __future__ import annotations

import os
from pathlib import Path

from pelton_run import job_folder, stacks

from pelton import _C
from pelton._training._rendezvous import DAEMON
from pelton._warn import warn
from pelton.errors import PeltonError


class Sight:
    """Of a joined job. Threads: the main thread makes and ends it. Owns: the door, if the backend is here."""

    def __init__(self, backend: _C.Backend, address: str) -> None:
        """A job that was started without a folder for this is not to be seen.

        Args:
          backend: of this rank.
          address: where it has joined.
        """
        self._door: _C.ToolServer | None = None
        is_linked = address.startswith(DAEMON)
        folder = Path(address.removeprefix(DAEMON)).parent if is_linked else _folder()
        if folder is None:
            return
        try:
            stacks.answer(folder)
            if not is_linked:
                self._door = backend.serve_tools(str(folder / f"{backend.rank}{job_folder.DOOR}"))
        except (OSError, PeltonError) as error:  # no reason not to train
            warn(f"`pelton status` will not see rank {backend.rank}: {error}", RuntimeWarning)

    def close(self) -> None:
        """Closes the door; to be called before the backend stops. Idempotent."""
        if self._door is not None:
            self._door.stop()
            self._door = None


def _folder() -> Path | None:
    named = os.environ.get(job_folder.FOLDER_VARIABLE)
    return Path(named) if named else None
