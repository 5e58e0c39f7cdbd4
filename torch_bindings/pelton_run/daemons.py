"""The daemons of a job's ranks on this host: started before the ranks, ended after them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from pelton_run.processes import MARK_VARIABLE, TOKEN_VARIABLE, start_rank

PROGRAM_VARIABLE = "PELTON_DAEMON"
_LOOK_SECONDS = 0.01
_LISTEN_SECONDS = 30.0  # a daemon listens before it joins
# The launcher, or the kernel after it, ends them: a script may load its data for as long as it likes.
_NEVER_IDLE_SECONDS = 10**9


def program() -> str:
    """The path of pelton-daemon: PELTON_DAEMON, or the one that was installed with this package.

    Raises:
      FileNotFoundError: there is none; says what to do.
    """
    named = os.environ.get(PROGRAM_VARIABLE)
    path = Path(named) if named else Path(__file__).resolve().parent.parent / "pelton" / "pelton-daemon"
    if os.access(path, os.X_OK):
        return str(path)
    raise FileNotFoundError(
        f"{path} is no program; install pelton with its daemon, or set {PROGRAM_VARIABLE} to pelton-daemon's path"
    )


class Daemons:
    """One pelton-daemon for each rank of a job on this host.

    The job's token is in their environment and in no rank's. Threads: the launcher's. Owns: the processes and their
    sockets.
    """

    def __init__(self, mark: str, folder: Path) -> None:
        """Args:
        mark: by which the launcher finds the job's processes again.
        folder: where their sockets lie.
        """
        self._mark = mark
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> frozenset[int]:
        """Of the daemons that have been started."""
        return frozenset(process.pid for process in self._processes)

    def start(self, size: int, coordinator: str, inherited: Mapping[str, str]) -> None:
        """Starts the daemons of all ranks. Blocks: until each listens.

        Args:
          size: number of the job's ranks, all of them on this host.
          coordinator: where rank 0's daemon is to serve, as host:port.
          inherited: the launcher's environment.

        Raises:
          OSError: one cannot be started, or has ended; its own lines say why.
        """
        token = secrets.token_hex(16)
        environment = {name: value for name, value in inherited.items() if not name.startswith("TORCHELASTIC_")}
        environment.update({TOKEN_VARIABLE: token, MARK_VARIABLE: self._mark})
        for rank in range(size):
            words = ["--rank", str(rank), "--world-size", str(size), "--coordinator", coordinator]
            words += ["--idle-timeout", str(_NEVER_IDLE_SECONDS)]
            command = [program(), "--socket", self._socket(rank), *words]
            with open(os.devnull, "wb") as nothing, open(2, "wb", closefd=False) as errors:
                self._processes.append(start_rank(command, environment, nothing, errors))
        for rank, process in enumerate(self._processes):
            self._await_socket(rank, process)

    def revive(self, size: int, coordinator: str, inherited: Mapping[str, str], grace_s: float) -> None:
        """Starts all of them anew if one has ended, because the job of the others has failed with it.

        Args:
          size: as for `start`.
          coordinator: as for `start`.
          inherited: as for `start`.
          grace_s: as for `stop`.

        Raises:
          OSError: as `start`.
        """
        if any(process.poll() is not None for process in self._processes):
            self.stop(grace_s)
            self.start(size, coordinator, inherited)

    def variables_of(self, local_rank: int) -> dict[str, str]:
        """By which a rank finds its daemon."""
        return {"PELTON_COORDINATOR": f"unix:{self._socket(local_rank)}", MARK_VARIABLE: self._mark}

    def stop(self, grace_s: float) -> None:
        """Ends them, and removes their sockets. Idempotent. Blocks: until they have ended, at most `grace_s` or so."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        for path in self._folder.glob("*"):
            if path.is_socket():  # of one that was killed: nobody must wait there
                path.unlink(missing_ok=True)

    def _socket(self, rank: int) -> str:
        return str(self._folder / str(rank))

    def _await_socket(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _LISTEN_SECONDS
        while not os.path.exists(self._socket(rank)):
            code = process.poll()
            if code is not None or time.monotonic() > deadline:
                what = "does not listen" if code is None else f"ended with code {code}"
                raise ChildProcessError(f"the pelton-daemon of rank {rank} {what}; its own lines say why")
            time.sleep(_LOOK_SECONDS)
