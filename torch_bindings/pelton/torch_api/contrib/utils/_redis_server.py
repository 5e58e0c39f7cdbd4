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

from pelton._training._addresses import LOOPBACK
from pelton.errors import DeadlineExceeded, InvalidArgument, NotFound

_START_S = 10.0
_SOON_S = 1.5
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


def options(words: Sequence[str]) -> list[str]:
    """What follows redis-server on a command line, as lines of a configuration: "--save 60 1" in one word or in three.

    Raises:
      InvalidArgument: a value stands before the first option.
    """
    lines: list[str] = []
    for word in words:
        if word.startswith("--"):
            lines.append(word.removeprefix("--"))
        elif lines:
            lines[-1] += f" {word}" if word and not any(c.isspace() for c in word) else f' "{word}"'
        else:
            raise InvalidArgument(f"args: {word!r} belongs to no option; an option begins with --")
    return lines


def start_by_hand(lines: Sequence[str], port: int) -> RedisServer:
    """Starts a server on loopback at a port that somebody has chosen. Blocks: until it answers.

    Raises:
      NotFound: there is no redis-server on this machine.
      InvalidArgument: the port is in use, or the server does not take its configuration.
      DeadlineExceeded: it does not answer.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise InvalidArgument(f"port={port}: {error}; choose another one") from None
    server = RedisServer(lines, port)
    for patience_s in (_SOON_S, _START_S):
        if _reply(port, "PING", patience_s):  # or that it wants a password
            return server
        complaint = _complaint(lines)
        if complaint:
            server.stop()
            raise InvalidArgument(f"args: redis-server does not take them: {complaint}")
    server.stop()
    raise DeadlineExceeded(f"redis-server did not answer at port {port} within {_START_S:g} s")


def _complaint(lines: Sequence[str]) -> str:
    """What a server says of a configuration before it ends; empty: it takes it."""
    text = "".join(f"{line}\n" for line in [*lines, "port 0"])
    with contextlib.suppress(subprocess.TimeoutExpired):  # it has started
        ended = subprocess.run(
            ["redis-server", "-"], input=text, capture_output=True, text=True, timeout=_SOON_S, check=False
        )
        return " ".join((ended.stderr or ended.stdout).split())
    return ""


def _answers(bind: str, port: int, password: str) -> bool:
    """Whether the server that knows the password is there in time."""
    return _reply(port, f"AUTH {password}", _START_S, bind).startswith(b"+OK")


def _reply(port: int, question: str, patience_s: float, bind: str = LOOPBACK) -> bytes:
    """What a server says to its first question; empty: none is there in time."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((bind, port), 1.0) as connection:
            connection.sendall(f"{question}\r\n".encode())
            return connection.recv(16)
        time.sleep(0.02)
    return b""


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
