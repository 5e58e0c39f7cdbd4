"""PELTON_BACKEND=daemon where no launcher of Pelton's has started the job, torchrun for instance.

The first trainer of a rank starts the rank's pelton-daemon, which outlives it, and a later one finds it at a socket
whose folder is named after the job. The daemons of a job belong together: the ranks say through the store which daemons
live, and where one is missing, all are started anew. A daemon ends by itself when no trainer has come for some time.

The job's token goes from rank 0 through the store to whoever starts a daemon, and through a pipe into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pelton_run.daemons import program
from pelton_run.job_folder import folder_of, is_served, lock, remove_deserted
from pelton_run.ports import LOOPBACK, port_of, reserve_port
from pelton_run.processes import TOKEN_VARIABLE
from torch.distributed import Store  # type: ignore[attr-defined]  # exported on a condition

from pelton import _C
from pelton._training import _launchers, _store_meeting, env
from pelton.errors import DeadlineExceeded, PeerLost

_LOOK_S = 0.01
_NO_COORDINATOR = f"{LOOPBACK}:0"  # of daemons that have one already
_started: list[subprocess.Popen[bytes]] = []  # which live on: nobody waits for them


def attach(
    store: Store, rank: int, world_size: int, timeout_s: float, interface: _store_meeting.Interface
) -> tuple[str, str]:
    """Finds this rank's daemon, or starts it. Collective.

    Args:
      store: all ranks' store.
      rank: this process's number.
      world_size: number of ranks.
      timeout_s: until all have come.
      interface: where rank 0's daemon is to listen, by the ranks that come.

    Returns:
      The path of the daemon's socket, and the name of the job that it has joined.

    Raises:
      DeadlineExceeded: ranks have not come, or a daemon has not begun to listen, in time.
      PeerLost: the daemon has ended while it started; the text has what it has said.
    """
    remove_deserted()  # of daemons that were killed
    folder = folder_of(_identity(world_size))
    socket = folder / str(rank)
    with _locked(folder, rank, timeout_s), contextlib.ExitStack() as stack:
        mine = _job_at(socket, timeout_s)
        record = _meet(store, rank, world_size, timeout_s, mine, interface, stack)
        if record.job != mine:
            _stop(socket, timeout_s)
            _start(socket, rank, world_size, record, timeout_s)
    return str(socket), record.job


# By which a daemon goes for as long as it lives: a job with others has daemons of its own.
_SETTINGS = (
    "PELTON_WIRE",
    "PELTON_UCX_TLS",
    "PELTON_INTERFACE",
    "PELTON_HOST_LABEL",
    "PELTON_SCHEDULES",
    "PELTON_HEARTBEAT_TIMEOUT",
    "PELTON_SPIN_US",
    "PELTON_INSECURE",
    "PELTON_TLS_CA",
    "PELTON_TLS_CERT",
    "PELTON_TLS_KEY",
    "PELTON_TLS_NAME",
)


def _identity(world_size: int) -> str:
    """What a job keeps through its restarts, in which torchrun may choose another port."""
    job = _launchers.job_identity()
    if job in ("", "none"):  # torchrun's, where nobody has named the run
        job = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    settings = [f"{name}={os.environ[name]}" for name in _SETTINGS if name in os.environ]
    return " ".join([f"{os.getuid()} {job} {world_size}", *settings])


@contextlib.contextmanager
def _locked(folder: Path, rank: int, timeout_s: float) -> Iterator[None]:
    """One trainer of a rank at a time; the file goes with the folder, which the last daemon removes."""
    path = folder / f"{rank}.lock"
    deadline = time.monotonic() + timeout_s
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.ExitStack() as locks:
            try:  # the folder's as well, so that no other job takes it for a deserted one
                locks.callback(os.close, lock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB))
                locks.callback(os.close, lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDWR | os.O_CREAT))
            except (FileNotFoundError, BlockingIOError):
                pass
            else:
                yield
                return
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"another process has looked for rank {rank}'s daemon for {timeout_s:g} s ({path})")
        time.sleep(_LOOK_S)


def _job_at(socket: Path, timeout_s: float) -> str:
    """The job of the daemon that lives at a socket; NOBODY if there is none, or its job has failed."""
    command = [program(), "--socket", str(socket), "--status", "--json"]
    deadline = time.monotonic() + timeout_s
    while is_served(socket):
        asked = subprocess.run(command, capture_output=True, text=True, check=False)  # it has a deadline of its own
        if asked.returncode == 0:
            status = json.loads(asked.stdout)
            return _store_meeting.NOBODY if status["failure"] else str(status["job"])
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"the pelton-daemon at {socket} does not answer: {asked.stderr.strip()}")
        time.sleep(_LOOK_S)
    return _store_meeting.NOBODY


def _meet(
    store: Store,
    rank: int,
    world_size: int,
    timeout_s: float,
    mine: str,
    interface: _store_meeting.Interface,
    stack: contextlib.ExitStack,
) -> _store_meeting.Record:
    """Rank 0 decides: the daemons that live, where they are of one job, else new ones, whose port it reserves."""
    if rank != 0:
        return _store_meeting.follow(store, rank, world_size, timeout_s, mine)

    def serve(guests: list[_store_meeting.Guest]) -> tuple[str, str]:
        if _common_job(guests) is not None:
            return _NO_COORDINATOR, secrets.token_hex(16)  # which opens nothing
        host = _C.bind_address(interface(guests))
        port = port_of(stack.enter_context(reserve_port(host.strip("[]"))))
        return f"{host}:{port}", secrets.token_hex(16)

    def job(guests: list[_store_meeting.Guest]) -> str:
        return _common_job(guests) or f"daemons-{secrets.token_hex(8)}"

    return _store_meeting.lead(store, world_size, timeout_s, serve, mine, job)


def _common_job(guests: list[_store_meeting.Guest]) -> str | None:
    jobs = {guest.daemon for guest in guests}
    return jobs.pop() if len(jobs) == 1 and _store_meeting.NOBODY not in jobs else None


def _stop(socket: Path, timeout_s: float) -> None:
    """Ends the daemon of another job that lives at a socket."""
    command = [program(), "--socket", str(socket), "--stop"]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=False)  # it has a deadline of its own
    deadline = time.monotonic() + timeout_s
    while is_served(socket):
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"the pelton-daemon at {socket} was told to end, and has not for {timeout_s:g} s")
        time.sleep(_LOOK_S)
    socket.unlink(missing_ok=True)


def _start(socket: Path, rank: int, world_size: int, record: _store_meeting.Record, timeout_s: float) -> None:
    """Starts a daemon with a session of its own. Blocks: until it listens."""
    reader, writer = os.pipe()
    os.write(writer, record.token.encode())
    os.close(writer)
    words = ["--rank", str(rank), "--world-size", str(world_size), "--coordinator", record.address]
    words += ["--job", record.job, "--token-file", f"/dev/fd/{reader}", "--removes-folder"]
    words += ["--idle-timeout", str(env.daemon_idle_s())]
    words += ["--trainer-grace", "0"]  # torchrun starts all ranks again when one has failed
    own = {name: text for name, text in os.environ.items() if name != TOKEN_VARIABLE}
    with tempfile.TemporaryFile() as lines:  # without a name: nothing of it is left
        try:
            daemon = subprocess.Popen(
                [program(), "--socket", str(socket), *words],
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=lines,
                start_new_session=True,
                pass_fds=[reader],
            )
        finally:
            os.close(reader)
        _started.append(daemon)
        _await(daemon, socket, rank, timeout_s, lines)


def _await(daemon: subprocess.Popen[bytes], socket: Path, rank: int, timeout_s: float, lines: IO[bytes]) -> None:
    deadline = time.monotonic() + timeout_s
    while not socket.exists():
        if daemon.poll() is not None:
            lines.seek(0)
            said = lines.read().decode(errors="replace").strip()
            raise PeerLost(f"the pelton-daemon of rank {rank} ended with code {daemon.returncode}: {said}")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"the pelton-daemon of rank {rank} (pid {daemon.pid}) does not listen at {socket}")
        time.sleep(_LOOK_S)
