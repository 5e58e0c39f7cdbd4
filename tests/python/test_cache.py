"""The cache over real Redis servers, which are slow, full, dead or not there at all; every item is delivered."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
import torch
import xxhash
from pelton.errors import InvalidArgument, NotFound, PeerLost, ResourceExhausted, Unsupported
from pelton.torch_api.contrib import CachedDataset, CacheLoader
from pelton.torch_api.contrib.utils import _redis_server
from pelton.torch_api.contrib.utils.redis_store import (
    RedisStore,
    shutdown_redis_server,
    start_redis_server_cli,
)
from pelton.torch_api.contrib.utils.store import ClusterStore, Store
from spawn import await_until, case_ids, check_case, environment, is_running, launcher
from torch.utils.data import DataLoader, Dataset

MODULE = "cases.cache"
STATED_S = 1.0  # longer no access may wait for a server, says docs/contrib.md
BUSY_S = 4.0  # what a machine that does other things may add to it
PASSWORD = "secret"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_caches_of_ranks(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


@pytest.fixture
def servers() -> Iterator[list[dict[str, Any]]]:
    """Two servers that are not the job's own."""
    started = [_redis_server.start("127.0.0.1", 1 << 26, PASSWORD) for _ in range(2)]
    try:
        yield [{"host": "127.0.0.1", "port": str(server.port), "password": PASSWORD} for server in started]
    finally:
        for server in started:
            server.stop()


@pytest.fixture(autouse=True)
def no_server_stays() -> Iterator[None]:
    yield
    shutdown_redis_server()


class Squares(Dataset[Any]):
    """Counts what it is asked for."""

    def __init__(self, size: int = 10) -> None:
        self.size = size
        self.asked: list[int] = []

    def __getitem__(self, item: int) -> Any:
        self.asked.append(item)
        return {"square": torch.full((3,), float(item**2)), "item": item}

    def __len__(self) -> int:
        return self.size


def _check_items(items: Sequence[Any]) -> None:
    assert [item["item"] for item in items] == list(range(len(items)))
    assert all(torch.equal(item["square"], torch.full((3,), float(i**2))) for i, item in enumerate(items))


def _pid(host: dict[str, Any]) -> int:
    """The process of a server."""
    return int(_client(host).info("server")["process_id"])


def _client(host: dict[str, Any]) -> Any:
    return redis.Redis(host=host["host"], port=int(host["port"]), password=host["password"])


def test_items_are_computed_once() -> None:
    data = Squares()
    cached = CachedDataset(data, dataset_name="squares", writer_buffer_size=1)
    for _ in range(3):
        _check_items([cached[i] for i in range(len(cached))])
    assert data.asked == list(range(10))
    assert cached.cache_loader.num_keys() == 10


def test_keys_and_writes_are_baguas(servers: list[dict[str, Any]]) -> None:
    """Written when the number of writes is a multiple of the buffer's size, and every thousand reads."""
    loader = CacheLoader(hosts=servers[:1], dataset_name="name", writer_buffer_size=3)
    counts = []
    for key in range(7):
        assert loader.get(key, lambda key: key + 1) == key + 1
        counts.append(loader.num_keys())
    assert counts == [0, 0, 3, 3, 3, 6, 6]
    assert sorted(_client(servers[0]).keys()) == sorted(f"name_{key}".encode() for key in range(6))
    for read in range(8, 1001):  # the last one is the thousandth
        assert loader.num_keys() == 6, read
        loader.get(0, lambda key: key)
    assert loader.num_keys() == 7


def test_none_is_a_value() -> None:
    loader = CacheLoader()
    asked: list[str] = []
    for _ in range(2):
        assert loader.get("x", asked.append) is None
    assert asked == ["x"]


def test_keys_are_spread_by_their_hashes(servers: list[dict[str, Any]]) -> None:
    store = RedisStore(servers)
    values: dict[str, Any] = {f"key {i}": str(i).encode() for i in range(40)}
    store.mset(values)
    store.set("one more", b"1")
    for i, host in enumerate(servers):
        expected = {key.encode() for key in [*values, "one more"] if xxhash.xxh64(key.encode()).intdigest() % 2 == i}
        assert set(_client(host).keys()) == expected
        assert expected
    assert store.mget(["key 3", "nothing", "key 39"]) == [b"3", None, b"39"]
    assert store.get("one more") == b"1"
    assert store.get("nothing") is None
    assert store.num_keys() == 41
    assert store.status()
    store.clear()
    assert store.num_keys() == 0
    store.shutdown()
    assert store.status(), "given servers go on"


def test_without_cluster_mode_each_host_has_one(servers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    for node in range(3):
        monkeypatch.setenv("NODE_RANK", str(node))
        store = RedisStore(servers, cluster_mode=False)
        assert [host["port"] for host in store.hosts] == [int(servers[node % 2]["port"])]


def test_own_servers_keep_to_themselves() -> None:
    store = RedisStore(capacity_per_node=1 << 25)
    (host,) = store.hosts
    assert RedisStore().hosts == [host], "one server for all stores of the job"
    settings = {name: _client(host).config_get(name)[name] for name in ("bind", "maxmemory", "save", "appendonly")}
    assert settings == {"bind": "127.0.0.1", "maxmemory": str(1 << 25), "save": "", "appendonly": "no"}
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=host["port"]).ping()
    pid = _pid(host)
    assert host["password"].encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    store.shutdown()
    await_until(lambda: not is_running(pid))
    assert not store.status()


@pytest.mark.parametrize(
    "words", [("--requirepass other", "--maxclients 17"), ("--requirepass", "other", "--maxclients", "17")]
)
def test_scripts_start_servers_of_their_own(words: tuple[str, ...]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start_redis_server_cli(port, 1 << 25, *words)
    with pytest.raises(InvalidArgument, match=f"port={port}: .*in use; choose another one"):
        start_redis_server_cli(port, 1 << 25)
    store = RedisStore([{"host": "127.0.0.1", "port": port, "password": "other"}])
    await_until(store.status)
    assert _client({"host": "127.0.0.1", "port": port, "password": "other"}).config_get("maxclients") == {
        "maxclients": "17"
    }
    shutdown_redis_server()
    assert not store.status()


def test_what_a_server_does_not_take_is_an_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(InvalidArgument, match="belongs to no option"):
        start_redis_server_cli(port, 1 << 25, "secret")
    with pytest.raises(InvalidArgument, match=r"redis-server does not take them: .*no-such-option"):
        start_redis_server_cli(port, 1 << 25, "--no-such-option", "1")
    shutdown_redis_server()


def test_a_machine_without_redis_server_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotFound, match="apt-get install redis-server"):
        CacheLoader()


def _deliver(cached: Any, count: int = 10) -> tuple[list[warnings.WarningMessage], float]:
    """All items; the warnings, and how long the slowest took."""
    slowest, items = 0.0, []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for i in range(count):
            began = time.monotonic()
            items.append(cached[i])
            slowest = max(slowest, time.monotonic() - began)
    _check_items(items)
    return [warning for warning in told if warning.category is RuntimeWarning], slowest


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as probe:  # bound, so that nobody else listens there
        probe.bind(("127.0.0.1", 0))
        cached = CachedDataset(Squares(), hosts=[{"host": "127.0.0.1", "port": probe.getsockname()[1]}])
        told, slowest = _deliver(cached)
        assert len(told) == 1
        assert "values are computed instead" in str(told[0].message)
        assert slowest < STATED_S + BUSY_S
        with pytest.raises(PeerLost, match="did not answer"):
            cached.cache_loader.num_keys()


def test_a_server_that_never_answers() -> None:
    """It takes connections, and is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cached = CachedDataset(Squares(), hosts=[{"host": "127.0.0.1", "port": silent.getsockname()[1]}])
        began = time.monotonic()
        told, slowest = _deliver(cached)
        assert slowest < STATED_S + BUSY_S
        assert time.monotonic() - began < STATED_S + BUSY_S, "it is asked once, and then left alone"
        assert len(told) == 1


def test_a_server_that_sends_a_byte_now_and_then() -> None:
    """No wait for it is long, and its answer would take ten seconds."""
    enough = threading.Event()

    def drip(server: socket.socket) -> None:
        with contextlib.suppress(OSError), server.accept()[0] as connection:
            while connection.recv(1000):
                for byte in b"$20\r\n" + 20 * b"x" + b"\r\n":
                    connection.sendall(bytes([byte]))
                    if enough.wait(0.4):
                        return

    with socket.create_server(("127.0.0.1", 0)) as slow:
        thread = threading.Thread(target=drip, args=(slow,))
        thread.start()
        try:
            cached = CachedDataset(Squares(), hosts=[{"host": "127.0.0.1", "port": slow.getsockname()[1]}])
            told, slowest = _deliver(cached)
            assert slowest < STATED_S + BUSY_S
            assert len(told) == 1
            assert "does not answer: TimeoutError" in str(told[0].message)
        finally:
            enough.set()
            thread.join()


def test_a_server_that_dies_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Squares()
    cached = CachedDataset(data, writer_buffer_size=1)
    assert _deliver(cached)[0] == []
    (host,) = cached.cache_loader.store.hosts  # type: ignore[attr-defined]
    pid = _pid(host)
    os.kill(pid, signal.SIGKILL)
    await_until(lambda: not is_running(pid))
    told, slowest = _deliver(cached)
    assert len(told) == 1
    assert slowest < STATED_S + BUSY_S
    assert _deliver(cached)[0] == []
    assert data.asked == list(range(10)) * 3
    lines = _redis_server.configuration("127.0.0.1", host["port"], 1 << 25, host["password"])
    _redis_server.RedisServer(lines, host["port"])
    await_until(cached.cache_loader.store.status)  # which asks at once, and ends the pause
    for _ in range(2):
        assert _deliver(cached)[0] == []
    assert data.asked == list(range(10)) * 4


def test_a_server_that_is_stopped_in_between(servers: list[dict[str, Any]]) -> None:
    cached = CachedDataset(Squares(), hosts=servers[:1], writer_buffer_size=1)
    assert _deliver(cached)[0] == []
    pid = _pid(servers[0])
    os.kill(pid, signal.SIGSTOP)
    try:
        told, slowest = _deliver(cached)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(told) == 1
    assert slowest < STATED_S + BUSY_S


def test_a_server_that_is_full(servers: list[dict[str, Any]]) -> None:
    client = _client(servers[0])
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", "1")
    data = Squares()
    cached = CachedDataset(data, hosts=servers[:1], writer_buffer_size=1)
    told, _ = _deliver(cached)
    assert len(told) == 1
    assert "refuses" in str(told[0].message)
    with pytest.raises(ResourceExhausted):
        cached.cache_loader.store.set("a", b"b")
    client.config_set("maxmemory", "0")
    for _ in range(2):
        assert _deliver(cached)[0] == []
    assert data.asked == list(range(10)) * 2


def test_one_of_two_servers_dies(servers: list[dict[str, Any]]) -> None:
    data = Squares(40)
    cached = CachedDataset(data, hosts=servers, writer_buffer_size=40)
    pid = _pid(servers[1])
    os.kill(pid, signal.SIGKILL)
    await_until(lambda: not is_running(pid))
    _deliver(cached, 40)
    data.asked.clear()
    _deliver(cached, 40)
    assert data.asked == [i for i in range(40) if xxhash.xxh64(f"_{i}".encode()).intdigest() % 2 == 1]


def test_values_of_others_cost_nothing_but_a_warning(servers: list[dict[str, Any]]) -> None:
    """Pickles, and bytes that mean nothing."""
    client = _client(servers[0])
    for i, content in enumerate((b"K" + pickle.dumps(3), b"", b"P", b"PXXXXXXXXX", b"text")):
        client.set(f"_{i}", content)
    told, _ = _deliver(CachedDataset(Squares(), hosts=servers[:1], writer_buffer_size=1))
    assert len(told) == 1
    assert _deliver(CachedDataset(Squares(), hosts=servers[:1]))[0] == []


class Pickled:
    """Has no form but pickle's."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pickled)

    __hash__ = None  # type: ignore[assignment]


def test_pickling_needs_trust(servers: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidArgument, match="holds a Pickled"):
        CacheLoader(hosts=servers[:1]).get("a", lambda _: [Pickled()])
    for loader in (CacheLoader(hosts=servers[:1], allow_pickle=True), CacheLoader()):
        for _ in range(2):
            assert loader.get("a", lambda _: [Pickled()]) == [Pickled()]
        assert loader.num_keys() == 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader_share_the_cache(method: str) -> None:
    data = Squares(24)
    cached = CachedDataset(data, writer_buffer_size=1)
    for _ in range(2):
        loader = DataLoader(cached, num_workers=2, batch_size=None, multiprocessing_context=method)
        _check_items(list(loader))
    assert cached.cache_loader.num_keys() == 24
    assert cached.cache_loader.store.status(), "a worker that ends ends no server"
    _check_items([cached[i] for i in range(24)])
    assert data.asked == []


_RANK = """
import os, signal, sys
import pelton.torch_api as bagua
from pelton.torch_api.contrib import CacheLoader
if len(sys.argv) > 1:
    bagua.init_process_group()
loader = CacheLoader()
host = loader.store.hosts[0]
print("server", host["port"], host["password"], os.getppid(), flush=True)
if bagua.get_rank() == 0:
    input() if len(sys.argv) == 1 else signal.pause()
signal.pause()
"""


def _started(command: list[str]) -> tuple[Any, int, int]:
    """A program that has a server; the server's process, and the parent of the program's rank."""
    process = subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "server" in line:
            _, port, password, parent = line[line.index("server") :].split()
            return process, _pid({"host": "127.0.0.1", "port": port, "password": password}), int(parent)
    raise AssertionError("it ended without a word")


def test_a_server_ends_with_its_process_after_kill_9() -> None:
    process, pid, _ = _started([sys.executable, "-c", _RANK])
    assert is_running(pid)
    process.kill()
    process.wait()
    await_until(lambda: not is_running(pid))


def test_a_server_ends_with_a_killed_launcher(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(_RANK)
    process, pid, parent = _started(launcher(2, script, "in a job"))
    assert is_running(pid)
    os.kill(parent, signal.SIGKILL)
    process.wait()
    await_until(lambda: not is_running(pid))


def test_wrong_arguments_are_refused() -> None:
    for arguments, text in (
        ({"backend": "disk"}, "backend='disk'"),
        ({"hosts": []}, "hosts: is empty"),
        ({"hosts": [{"host": "a"}]}, "needs 'host' and 'port'"),
        ({"hosts": [{"host": "a", "port": "b"}]}, "needs 'host' and 'port'"),
        ({"hosts": [{"host": "a", "port": 1, "db": 3}]}, r"unknown entries \['db'\]"),
        ({"capacity_per_node": 0}, "capacity_per_node=0"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            CacheLoader(**arguments)
    with pytest.raises(InvalidArgument, match="one store at least"):
        ClusterStore([])
    with pytest.raises(Unsupported, match=r"Store\.get: not offered"):
        Store().get("a")


def test_a_missing_package_is_named() -> None:
    """And nothing of it is imported before it is needed."""
    program = """
import sys
import threading
import pelton.torch_api
import pelton.torch_api.contrib
assert not {"redis", "xxhash"} & set(sys.modules)
sys.modules["redis"] = None
from pelton.torch_api.contrib import CacheLoader, fuse_optimizer
try:
    CacheLoader()
except ImportError as error:
    assert "pip install 'pelton[cache]'" in str(error), error
else:
    raise SystemExit(1)
"""
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True, timeout=120)
