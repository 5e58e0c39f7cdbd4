"""Python stacks of a process that somebody else asks for, without its help.

A rank has faulthandler write the stacks of its threads into a file of the job's folder when a real-time signal comes.
That needs neither the GIL nor a thread of the rank, so that one which computes, waits or hangs answers all the same;
one that is stopped does not.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import time
from pathlib import Path

SIGNAL = signal.SIGRTMAX - 3
_ANSWER_S = 1.0
_LOOK_S = 0.01
_files: dict[Path, int] = {}  # descriptors, which faulthandler uses for as long as the process lives


class Unknown(Exception):
    """The stacks are not to be had; the text says why."""


def path_of(folder: Path, pid: int) -> Path:
    """The file in which a process's stacks are written."""
    return folder / f"stack-{pid}"


def answer(folder: Path) -> None:
    """Has this process answer from now on, unless the program uses the signal itself. Idempotent."""
    path = path_of(folder, os.getpid())
    if path in _files or signal.getsignal(SIGNAL) != signal.SIG_DFL:
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    _files[path] = descriptor
    faulthandler.register(SIGNAL, file=descriptor, all_threads=True)
    atexit.register(_forget, path, os.getpid())


def _forget(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        with contextlib.suppress(OSError):
            path.unlink()


def ask(folder: Path, pid: int) -> str:
    """The stacks of another process, with the main thread's last. Blocks: for a second at most.

    Raises:
      Unknown: it does not answer.
    """
    path = path_of(folder, pid)
    if not path.is_file():
        raise Unknown("it keeps no stacks: it is no Python program, has not joined its job yet, or uses the signal")
    state = state_of(pid)
    if state == "T":
        raise Unknown("it is stopped, by a signal or a debugger")
    if not _catches(pid):  # the signal would end it
        raise Unknown("it has ended, or does not take the signal any more")
    os.truncate(path, 0)
    os.kill(pid, SIGNAL)
    deadline = time.monotonic() + _ANSWER_S
    text, before = "", None
    while time.monotonic() < deadline and (not text or text != before):  # until nothing more comes
        time.sleep(_LOOK_S)
        before, text = text, path.read_text(errors="replace")
    if not text:
        raise Unknown(f"it has not answered for {_ANSWER_S:g} s (its state is {state})")
    return text


def state_of(pid: int) -> str:
    """The state of a process by proc(5), R, S, D, T, Z, ...; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _catches(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False
