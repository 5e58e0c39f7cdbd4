"""The folder of a job on one host, in which the sockets of its ranks and daemons lie.

It is this user's alone (mode 0700), and its name tells nothing of the job's secret. Who looks at jobs finds them by
these folders: `pelton status` does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDER_VARIABLE = "PELTON_SIGHT"
DOOR = ".grpc"  # ends the name of a socket at which tools are answered; a rank's number begins it
_PREFIX = "pelton-"
_DIGITS = 16
_MOST_FOLDER_BYTES = 107 - len("/1000000" + DOOR)  # of the path of a Unix socket


def folder_of(mark: str) -> Path:
    """Where the sockets of a job lie, in TMPDIR, or in /tmp where that is too long for one.

    Args:
      mark: what tells the job from others; it may be a secret.
    """
    name = _PREFIX + hashlib.sha256(mark.encode()).hexdigest()[:_DIGITS]
    return _parents()[0] / name


def _parents() -> list[Path]:
    """Where such folders may lie, the one for new ones first."""
    folder = tempfile.gettempdir()
    is_short = len(os.fsencode(folder)) + len("/") + len(_PREFIX) + _DIGITS <= _MOST_FOLDER_BYTES
    return [Path(folder), Path("/tmp")] if is_short else [Path("/tmp"), Path(folder)]


def folders() -> Iterator[Path]:
    """All that are there of this user, of living jobs and of others."""
    for parent in dict.fromkeys(_parents()):
        for folder in sorted(parent.glob(_PREFIX + "?" * _DIGITS)):
            with contextlib.suppress(OSError):
                if folder.is_dir() and folder.stat().st_uid == os.getuid():
                    yield folder


def remove_deserted() -> None:
    """Removes the folders that were left of this user's jobs of which nothing lives any more. Who is about to use one
    holds a shared lock on it.
    """
    for folder in folders():
        _remove_if_deserted(folder)


def lock(path: Path, kind: int, flags: int = os.O_RDONLY) -> int:
    """Locks a job's folder, or a file in it, until the descriptor that it returns is closed.

    Args:
      path: of the folder or the file.
      kind: of the lock, as `fcntl.flock` takes it.
      flags: with which it is opened.

    Raises:
      BlockingIOError: `kind` has LOCK_NB, and another process has locked it.
      FileNotFoundError: it is not there, or was removed meanwhile.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind)
        if os.stat(path).st_ino != os.fstat(descriptor).st_ino:
            raise FileNotFoundError(f"{path} was removed")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class JobFolder:
    """A job's folder, for as long as its launcher lives. Threads: the launcher's. Owns: the folder and a lock on it."""

    def __init__(self, mark: str) -> None:
        """Makes the folder, once those are removed that were left of jobs of which nothing lives any more.

        Raises:
          OSError: it cannot be made.
        """
        remove_deserted()
        self.path = folder_of(mark)
        self.path.mkdir(mode=0o700)
        self._lock = lock(self.path, fcntl.LOCK_SH)

    def close(self) -> None:
        """Removes it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_if_deserted(folder: Path) -> None:
    """Removes the folder of a job whose launcher and guard, or whose daemons, were killed at once."""
    with contextlib.suppress(OSError):
        # Fails while a launcher has it, or a trainer that starts its daemon.
        descriptor = lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            sockets = [path for path in folder.iterdir() if not path.is_file()]
            if sockets and all(path.is_socket() and not is_served(path) for path in sockets):
                shutil.rmtree(folder)
        finally:
            os.close(descriptor)


def is_served(path: Path) -> bool:
    """Whether somebody listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)
