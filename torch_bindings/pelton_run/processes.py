"""Starting ranks so that none of them, nor anything they start, outlives the job."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from typing import IO

from pelton_run.job_folder import folder_of

TOKEN_VARIABLE = "PELTON_JOB_TOKEN"
MARK_VARIABLE = "PELTON_LAUNCH_MARK"  # instead, where the ranks of several nodes agree on a token by themselves

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def start_rank(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes] | None = None,
    errors: IO[bytes] | None = None,
    is_fed: bool = False,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts one rank: a process group of its own, killed by the kernel if this process dies.

    Args:
      command: its command line.
      environment: all of its variables.
      output: takes its standard output; None for a pipe.
      errors: takes its standard error; None for a pipe.
      is_fed: its standard input is a pipe; else it is empty.
      descriptors: it inherits these, under the same numbers.

    Raises:
      OSError: the command cannot be started.
    """
    launcher = os.getpid()

    def before_exec() -> None:
        os.setpgid(0, 0)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != launcher:  # it died before the line above
            os._exit(1)

    return subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.PIPE if is_fed else subprocess.DEVNULL,
        stdout=subprocess.PIPE if output is None else output,
        stderr=subprocess.PIPE if errors is None else errors,
        preexec_fn=before_exec,
        pass_fds=descriptors,
    )


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Sends a signal to a rank and to what it started in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def processes_of(token: str) -> list[int]:
    """Pids of the processes that carry the job's token, or the same as a mark, in their environment.

    These are the ranks and all their descendants, daemons that left their process group too, but not those that
    cleared their environment.
    """
    needles = {f"{name}={token}".encode() for name in (TOKEN_VARIABLE, MARK_VARIABLE)}
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if not needles.isdisjoint(file.read().split(b"\0")):
                    found.append(int(entry))
        except OSError:  # another user's process, or it has just ended
            continue
    return found


def is_detached(pid: int) -> bool:
    """Whether a process has a session of its own, as `setsid` and daemons do who mean to outlive their parents."""
    try:
        return os.getsid(pid) != os.getsid(0)
    except ProcessLookupError:
        return False


def exit_text(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def describe(pid: int) -> str:
    """A process's number and command line, for people."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = ""
    return f"pid {pid} ({words[:60] or 'ended'})"


def kill_job(token: str, timeout_s: float = 5.0, spared: Collection[int] = ()) -> None:
    """Kills every process of the job but the spared ones until none is left, or the time is over."""
    deadline = time.monotonic() + timeout_s
    clean_scans = 0
    while clean_scans < 2 and time.monotonic() < deadline:  # the second: forked while the first was under way
        pids = [pid for pid in processes_of(token) if pid not in spared]
        clean_scans = 0 if pids else clean_scans + 1
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if pids:
            time.sleep(0.02)


class Guard:
    """A small process that kills the job if the launcher dies without a word (kill -9).

    The kernel kills the ranks then; the guard kills what they had started. Threads: one. Owns: the process and the
    pipe whose closing tells it.
    """

    def __init__(self, token: str) -> None:
        """Forks the guard; to be called while the process has one thread."""
        reader, self._writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._writer)
            _guard(reader, token)
        os.close(reader)

    def dismiss(self) -> None:
        """Tells the guard that the job has ended in good order, and waits for it."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writer, b"done")
        os.close(self._writer)
        with contextlib.suppress(ChildProcessError):  # the kernel has reaped it, where SIGCHLD is ignored
            os.waitpid(self._pid, 0)


def _guard(reader: int, token: str) -> None:
    """The guard's life. Never returns."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # a reader of the launcher's output must see its end
            os.dup2(nothing, standard)
        if os.read(reader, 16) == b"":
            kill_job(token)
            shutil.rmtree(folder_of(token), ignore_errors=True)
    finally:
        os._exit(0)
