"""A client of a Redis server whose operations end in time, also where the server sends a byte now and then."""

from __future__ import annotations

import socket
import time
from typing import Any

from pelton._extras import optional_module

TIMEOUT_S = 0.5  # of each wait for a server
LIMIT_S = 2 * TIMEOUT_S  # of an operation


class Deadline:
    """When the operation under way ends. Threads: one at a time. Owns: nothing."""

    def __init__(self) -> None:
        self._until = 0.0

    def begin(self) -> None:
        """An operation begins."""
        self._until = time.monotonic() + LIMIT_S

    def left(self) -> float:
        """Raises: TimeoutError: nothing is left. Units: seconds."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole answer within {LIMIT_S:g} s")
        return left


class _TimedSocket(socket.socket):
    """Whose waits end with the operation; redis-py bounds each wait alone. Threads: one. Owns: the connection."""

    deadline: Deadline

    def recv(self, *arguments: Any) -> bytes:
        self._limit()
        return super().recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        self._limit()
        return super().recv_into(*arguments)

    def sendall(self, *arguments: Any) -> None:
        self._limit()
        super().sendall(*arguments)

    def _limit(self) -> None:
        if self.gettimeout() != 0:  # as where redis-py only looks whether something has come
            self.settimeout(min(TIMEOUT_S, self.deadline.left()))


def connect(host: dict[str, Any], deadline: Deadline) -> Any:
    """A client that connects when it is used, and tries nothing twice: the item comes from the data set meanwhile.

    Args:
      host: the server, with its password if it has one.
      deadline: that of the operation under way, whichever it is.
    """
    redis = optional_module("redis", "a RedisStore", "cache")
    retry, backoff = (optional_module(f"redis.{part}", "a RedisStore", "cache") for part in ("retry", "backoff"))

    plain: Any = redis.Connection

    class Connection(plain):  # type: ignore[misc]
        def _connect(self) -> socket.socket:
            made: socket.socket = super()._connect()
            timed = _TimedSocket(made.family, made.type, made.proto, made.detach())
            timed.deadline = deadline
            timed.settimeout(TIMEOUT_S)
            return timed

    never = retry.Retry(backoff.NoBackoff(), 0)
    client = redis.Redis(**host, retry=never, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, protocol=2)
    client.connection_pool.connection_class = Connection
    return client
