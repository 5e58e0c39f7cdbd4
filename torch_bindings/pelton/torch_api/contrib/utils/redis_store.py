"""A store of keys and values in Redis servers: given ones, or one on each host that the job starts itself."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pelton._extras import optional_module
from pelton._training import _session, env
from pelton._training._addresses import LOOPBACK
from pelton._training._groups import AnyGroup, own_group
from pelton.errors import FailedPrecondition, InvalidArgument, PeerLost, PeltonError, ResourceExhausted
from pelton.torch_api.contrib.utils import _redis_client, _redis_server
from pelton.torch_api.contrib.utils.store import ClusterStore, Store, Value

__all__ = [
    "RedisStore",
    "bootstrap_redis_server",
    "shutdown_redis_server",
    "start_redis_server_cli",
]

PAUSE_S = 10.0  # for which a server that failed is left alone
_CAPACITY = 100 << 30
_PASSWORD_BYTES = 32
_GET_ADDRESS = 0x8915  # SIOCGIFADDR, of linux/sockios.h
_Result = TypeVar("_Result")
Host = dict[str, Any]


class RedisStore(ClusterStore):
    """Keys and values in one Redis server or several.

    Every wait for a server ends after half a second and every operation after a second; a server that did not answer
    is left alone for ten seconds, in which its operations fail at once. Copies (fork, pickle) have connections of
    their own, and end no server.

    Threads: one at a time. Owns: its connections, and the server that it has started.
    """

    def __init__(
        self,
        hosts: Sequence[Mapping[str, Any]] | None = None,
        cluster_mode: bool = True,
        capacity_per_node: int = _CAPACITY,
        *,
        process_group: AnyGroup = None,
    ) -> None:
        """Without hosts collective over the group, of which the first rank on each host starts a server there.

        Args:
          hosts: servers that run already, each with "host" and "port", and "username" and "password" if it asks for
            them. Nothing is sent to them here. None: servers of this job's own, the same for all such stores of it.
          cluster_mode: keys are spread over all servers; if not, each host uses one: its own, or of those that are
            given the one that its number says.
          capacity_per_node: how much a server that is started may keep before it drops random keys. Units: bytes.
          process_group: the ranks that share the servers that are started; None for all.

        Raises:
          InvalidArgument: an argument is wrong, or this rank is no member of the group.
          ImportError: the package redis, or with several servers xxhash, is not installed.
          FailedPrecondition: there are several ranks, and the process group is not initialised; or the server of a
            host could not be started, raised on all ranks; or it would be reached over a network, and nothing says
            over which.
          NotFound, DeadlineExceeded: the server of a process that is alone could not be started.
        """
        optional_module("redis", "a RedisStore", "cache")
        self.is_own = hosts is None  # by this job, so that what is in it was written by the job
        if hosts is None:
            hosts = bootstrap_redis_server(capacity_per_node, process_group=process_group, cluster_mode=cluster_mode)
        checked = [_checked(host) for host in hosts]
        if not checked:
            raise InvalidArgument("hosts: is empty; name one server at least, or None")
        self.hosts = checked if cluster_mode else [checked[_host_number() % len(checked)]]
        self.cluster_mode = cluster_mode
        super().__init__([_OneServer(host) for host in self.hosts])

    def shutdown(self) -> None:
        """Ends the server that this process has started for its job; given ones go on. To be called on all ranks before
        servers are started anew.
        """
        if self.is_own:
            shutdown_redis_server()


class _OneServer(Store):
    """One server. Threads: one at a time. Owns: its connections."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._client: tuple[int, Any] | None = None  # with the process that made it
        self._silent_until = 0.0
        self._deadline = _redis_client.Deadline()

    def __getstate__(self) -> dict[str, Any]:
        return {"_host": self._host, "_client": None, "_silent_until": 0.0, "_deadline": _redis_client.Deadline()}

    def set(self, key: str, value: Value) -> None:
        """Stores a value."""
        self._run(lambda client: client.set(key, value))

    def get(self, key: str) -> Value | None:
        """The value of a key."""
        found: Value | None = self._run(lambda client: client.get(key))
        return found

    def num_keys(self) -> int:
        """The number of keys."""
        return int(self._run(lambda client: client.dbsize()))

    def clear(self) -> None:
        """Deletes all keys."""
        self._run(lambda client: client.flushdb())

    def mset(self, dictionary: dict[str, Value]) -> None:
        """Stores several values."""
        if dictionary:
            self._run(lambda client: client.mset(dictionary))

    def mget(self, keys: list[str]) -> list[Value | None]:
        """The values of several keys."""
        return list(self._run(lambda client: client.mget(keys))) if keys else []

    def status(self) -> bool:
        """Whether it answers now."""
        self._silent_until = 0.0
        with contextlib.suppress(PeltonError):
            return bool(self._run(lambda client: client.ping()))
        return False

    def shutdown(self) -> None:
        """Nothing: it is the job's, or the user's."""

    def _run(self, operation: Callable[[Any], _Result]) -> _Result:
        """An operation on the server.

        Raises:
          PeerLost: it is not reached, or has not been a moment ago.
          ResourceExhausted: it is full, or refuses the operation for another reason.
        """
        redis = optional_module("redis", "a RedisStore", "cache")
        name = f"the Redis server at {self._host['host']}:{self._host['port']}"
        if time.monotonic() < self._silent_until:
            raise PeerLost(f"{name} did not answer; it is asked again {PAUSE_S:g} s after that")
        try:
            self._deadline.begin()
            return operation(self._connected())
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self._silent_until = time.monotonic() + PAUSE_S
            self._client = None
            raise PeerLost(f"{name} does not answer: {type(error).__name__}: {error}") from None
        except redis.RedisError as error:
            raise ResourceExhausted(f"{name} refuses: {type(error).__name__}: {error}") from None

    def _connected(self) -> Any:
        if self._client is None or self._client[0] != os.getpid():
            self._client = (os.getpid(), _redis_client.connect(self._host, self._deadline))
        return self._client[1]


def _checked(host: Mapping[str, Any]) -> Host:
    unknown = set(host) - {"host", "port", "username", "password"}
    try:
        found = {"host": str(host["host"]), "port": int(host["port"])}
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"hosts: each needs 'host' and 'port', a number; one lacks them: {error!r}") from None
    if unknown:
        raise InvalidArgument(f"hosts: unknown entries {sorted(unknown)}; host, port, username and password are known")
    return {**found, **{name: str(host[name]) for name in ("username", "password") if host.get(name)}}


def _host_number() -> int:
    """This host's number among the job's."""
    if not _session.is_initialized():
        return env.get_node_rank()
    backend = _session.current().backend
    hosts = backend.host_of()
    return sorted(set(hosts)).index(hosts[backend.rank])


_Bootstrapped = dict[tuple[str, bool], list[Host]]  # by group and cluster_mode
_bootstrapped: weakref.WeakKeyDictionary[_session.Session, _Bootstrapped] = weakref.WeakKeyDictionary()
_Counts = dict[tuple[str, bool], int]  # how often a group has started servers, by the same
_counts: weakref.WeakKeyDictionary[_session.Session, _Counts] = weakref.WeakKeyDictionary()
_alone: list[Host] = []  # of a process without a job


def bootstrap_redis_server(
    capacity_per_node: int = _CAPACITY, *, process_group: AnyGroup = None, cluster_mode: bool = True
) -> list[Host]:
    """Starts a server on each host of a group, unless that has been done; collective over the group.

    A server listens on loopback, or where other hosts must reach it (`cluster_mode`) on PELTON_INTERFACE's address. It
    asks for a random password, which travels through the job's own store, keeps nothing on disk, and ends with the
    rank that started it.

    Args:
      capacity_per_node: how much each keeps before it drops random keys. Units: bytes.
      process_group: the ranks that share them; None for all.
      cluster_mode: every host is to reach all servers.

    Returns:
      "host", "port" and "password" of all servers in the order of the hosts; without `cluster_mode` of this host's
      alone.

    Raises:
      PeltonError: as `RedisStore`.
    """
    if capacity_per_node < 1:
        raise InvalidArgument(f"capacity_per_node={capacity_per_node}: must be 1 or more")
    if not _session.is_initialized() and process_group is None and env.get_world_size() == 1:
        if not _alone:
            _alone.append(_started(LOOPBACK, capacity_per_node))
        return list(_alone)
    group = own_group(process_group)
    session = _session.current()
    known = _bootstrapped.setdefault(session, {})
    key = (group.group_name, cluster_mode)
    if key not in known:
        counts = _counts.setdefault(session, {})
        counts[key] = counts.get(key, 0) + 1
        # Nothing in the name may depend on what else this rank has started: ranks may do so in any order.
        name = f"redis of {group.group_name}, cluster_mode={cluster_mode}, {counts[key]}"
        known[key] = _bootstrap(session, group.ranks, name, cluster_mode, capacity_per_node)
    return list(known[key])


def _bootstrap(session: _session.Session, ranks: Sequence[int], name: str, spread: bool, capacity: int) -> list[Host]:
    from pelton.distributed import Store as JobStore

    rank, host_of = session.backend.rank, session.backend.host_of()
    leaders = [r for i, r in enumerate(ranks) if host_of[r] not in {host_of[other] for other in ranks[:i]}]
    wanted = leaders if spread else [r for r in leaders if host_of[r] == host_of[rank]]
    store = JobStore()
    word = _leaders_word(spread and len(leaders) > 1, capacity) if rank in leaders else {}
    if word:
        store.set(f"{name} {rank}", json.dumps(word))
    told = {leader: json.loads(store.get(f"{name} {leader}")) for leader in leaders}
    for leader, host in told.items():
        if "error" in host:
            _redis_server.stop(word.get("port"))  # nobody learns of it, where another host has none
            raise FailedPrecondition(f"rank {leader} could not start the Redis server of its host: {host['error']}")
    return [told[leader] for leader in wanted]


def _leaders_word(is_reached_by_others: bool, capacity: int) -> Host:
    """The server of this host, or why there is none: the other ranks wait for a word."""
    try:
        return _started(_own_address() if is_reached_by_others else LOOPBACK, capacity)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _started(bind: str, capacity: int) -> Host:
    password = secrets.token_hex(_PASSWORD_BYTES)
    return {"host": bind, "port": _redis_server.start(bind, capacity, password).port, "password": password}


def _own_address() -> str:
    """The address of PELTON_INTERFACE, by which other hosts reach this one."""
    name = env.interface()
    if not name:
        raise FailedPrecondition(
            "PELTON_INTERFACE is not set in the environment: it says on which network the other hosts reach this one's "
            "server. Set it on every rank, or give cluster_mode=False, with which each host uses its own server"
        )
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)[20:24])
        except OSError as error:
            raise FailedPrecondition(f"PELTON_INTERFACE={name!r} in the environment: {error}") from None


def start_redis_server_cli(port: int, capacity: int, *args: str) -> None:
    """Starts a server on loopback that asks for no password, until `shutdown_redis_server` or this process's end.

    Args:
      port: where it listens.
      capacity: how much it keeps before it drops random keys. Units: bytes.
      *args: more options as redis-server's own: "--requirepass secret", or "--requirepass", "secret".

    Raises:
      NotFound: there is no redis-server on this machine.
      InvalidArgument: the server does not take the options, or the port; the text has its own words.
    """
    lines = _redis_server.configuration(LOOPBACK, port, capacity, None)
    _redis_server.start_by_hand([*lines, *_redis_server.options(args)], port)


def shutdown_redis_server() -> None:
    """Ends every server that this process has started. Idempotent."""
    _redis_server.stop_all()
    _alone.clear()
    _bootstrapped.clear()
