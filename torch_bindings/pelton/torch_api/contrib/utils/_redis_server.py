"""Redis servers that end with the process that started them, however that ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence

from pelton.errors import DeadlineExceeded, NotFound

_START_S = 10.0
_STOP_S = 5.0
_TRIES = 3
# The shell reads the configuration (with the password, which no command line is to show), starts the server and waits
# for the end of its input: the kernel closes that when the process that started it is gone, by kill -9 too.
_SCRIPT = """
config=
while IFS= read -r line && [ "$line" != end ]; do config="$config$line
"; done
printf '%s' "$config" | "$1" - >/dev/null 2>&1 &
server=$!
while read -r line; do :; done
kill -9 "$server"
"""


class RedisServer:
    """A server that this process has started. Threads: one at a time. Owns: the server."""

    def __init__(self, lines: Sequence[str], port: int) -> None:
        """Args:
        lines: its configuration.
        port: where it is to be found.

        Raises:
          NotFound: there is no redis-server on this machine.
        """
        program = shutil.which("redis-server")
        if program is None:
            raise NotFound(
                "redis-server is not installed on this machine, or not on PATH: install it (Debian: apt-get install "
                "redis-server), or give `hosts` of servers that run already"
            )
        self.port = port
        self._pid = os.getpid()
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "pelton-redis", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt at the terminal is for the training program
        )
        assert self._shell.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.write("".join(f"{line}\n" for line in [*lines, "end"]).encode())
            self._shell.stdin.flush()
        _running.append(self)

    def stop(self) -> None:
        """Ends it; without effect in a process that was forked from the one that started it. Idempotent."""
        if self._pid != os.getpid() or self not in _running:
            return
        _running.remove(self)
        self.let_go()
        try:
            self._shell.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()

    def let_go(self) -> None:
        """Closes this process's end of what keeps it alive."""
        assert self._shell.stdin is not None
        with contextlib.suppress(OSError):
            self._shell.stdin.close()


_running: list[RedisServer] = []


def configuration(bind: str, port: int, capacity: int, password: str | None) -> list[str]:
    """The lines of a server's configuration: in memory only, and within a limit.

    Args:
      bind: the address that it listens on.
      port: and the port.
      capacity: how much it may keep; random keys go then. Units: bytes.
      password: None for a server that asks for none, which serves this machine alone.
    """
    lines = [f"bind {bind}", f"port {port}", f"maxmemory {capacity}", "maxmemory-policy allkeys-random"]
    # A title would overwrite the environment, by which `pelton run` knows what belongs to the job.
    lines += ['save ""', "appendonly no", "daemonize no", "protected-mode yes", "set-proc-title no"]
    return lines if password is None else [*lines, f"requirepass {password}"]


def start(bind: str, capacity: int, password: str) -> RedisServer:
    """Starts a server on a free port. Blocks: until it answers.

    Raises:
      NotFound: there is no redis-server on this machine.
      DeadlineExceeded: it does not answer.
    """
    for _ in range(_TRIES):  # another process may take the port in between
        with socket.socket() as probe:
            probe.bind((bind, 0))
            port = int(probe.getsockname()[1])
        server = RedisServer(configuration(bind, port, capacity, password), port)
        if _answers(bind, port, password):
            return server
        server.stop()
    raise DeadlineExceeded(
        f"redis-server did not answer on {bind} within {_START_S:g} s, at {_TRIES} ports; start it by hand with "
        f"`redis-server --bind {bind}` to see why"
    )


def _answers(bind: str, port: int, password: str) -> bool:
    """Whether the server that knows the password is there in time."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((bind, port), 1.0) as connection:
            connection.sendall(f"AUTH {password}\r\n".encode())
            return connection.recv(16).startswith(b"+OK")
        time.sleep(0.02)
    return False


def stop(port: int | None) -> None:
    """Ends the server of this process at a port, if there is one."""
    for server in [server for server in _running if server.port == port]:
        server.stop()


def stop_all() -> None:
    """Ends every server that this process has started."""
    for server in list(_running):
        server.stop()


def _let_go_in_child() -> None:
    """A forked process, such as a DataLoader's worker, keeps no server alive."""
    for server in _running:
        server.let_go()
    _running.clear()


atexit.register(stop_all)
os.register_at_fork(after_in_child=_let_go_in_child)
