"""A job's own Redis servers where its ranks are on several hosts, which are network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spawn import await_until, environment, is_running

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.network.hosts import Hosts

_LIMIT_S = 120
_PORT = "29714"  # of a namespace that nobody else is in
_HOST_OF = [0, 0, 1]
_ITEMS = 24

_RANK = f"""
import json, os, signal, sys
import pelton.torch_api as bagua
import redis
import torch
from pelton.errors import FailedPrecondition
from pelton.torch_api.contrib import CacheLoader
from pelton.torch_api.contrib.utils import _redis_server

def refusal(**arguments):
    try:
        CacheLoader(**arguments)
    except FailedPrecondition as error:
        return str(error)
    return "none"

def clients(hosts):
    return [redis.Redis(host=h["host"], port=h["port"], password=h["password"], socket_timeout=30) for h in hosts]

signal.alarm({_LIMIT_S})
bagua.init_process_group()
rank, said = bagua.get_rank(), {{}}
said["unset"] = refusal()
os.environ["PELTON_INTERFACE"] = "eth0" if rank < 2 else "eth7"
said["of one host wrong"] = refusal()
said["running after refusals"] = len(_redis_server._running)
own = CacheLoader(cluster_mode=False)
said["own hosts"] = [host["host"] for host in own.store.hosts]
own.get(rank, lambda key: key)
bagua.barrier()
said["own keys"] = own.num_keys()
os.environ["PELTON_INTERFACE"] = "eth0"
loader = CacheLoader(dataset_name="shared")
said["hosts"] = loader.store.hosts
for item in range(rank, {_ITEMS}, 3):
    loader.get(item, lambda key: torch.full((2,), float(key)))
bagua.barrier()
said["items"] = [loader.get(item, lambda key: torch.tensor([-1.0])).tolist() for item in range({_ITEMS})]
servers = clients(loader.store.hosts)
said["keys"] = [server.dbsize() for server in servers]
said["binds"] = [server.config_get("bind")["bind"] for server in servers]
said["processes"] = [server.info("server")["process_id"] for server in servers]
said["processes"] += [server.info("server")["process_id"] for server in clients(own.store.hosts)]
bagua.barrier()
bagua.destroy_process_group()
print(json.dumps(said), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def _job(hosts: Hosts) -> Iterator[list[subprocess.Popen[str]]]:
    """The ranks, which print what they saw, and stay until their input ends."""
    processes = []
    for rank, host in enumerate(_HOST_OF):
        place = {"RANK": str(rank), "WORLD_SIZE": str(len(_HOST_OF)), "MASTER_ADDR": hosts.address(0)}
        variables = environment({**place, "MASTER_PORT": _PORT, "PELTON_INSECURE": "1"})
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(hosts.popen(host, [sys.executable, "-c", _RANK], env=variables, **pipes))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _words(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    said: dict[str, Any] = json.loads(line)
    return said


def test_ranks_on_two_hosts_share_a_server_on_each(hosts: Hosts) -> None:
    """Each is found at its host's address on PELTON_INTERFACE, serves items to both hosts, and ends with its rank."""
    with _job(hosts) as processes:
        said = [_words(process) for process in processes]
        _check_refusals(said)
        _check_items(said, hosts)
        on_first, on_second, own = said[0]["processes"]
        on_other_host = said[2]["processes"][2]
        everyones = {on_first, on_second, own, on_other_host}
        assert len(everyones) == 4
        assert all(map(is_running, everyones))
        os.kill(processes[2].pid, signal.SIGKILL)
        await_until(lambda: not is_running(on_second) and not is_running(on_other_host))
        assert is_running(on_first)
        assert is_running(own)
        for process in processes[:2]:
            assert process.communicate(timeout=_LIMIT_S)[0] == ""
            assert process.returncode == 0
        await_until(lambda: not any(map(is_running, everyones)))


def _check_refusals(said: list[dict[str, Any]]) -> None:
    """On all ranks: which rank could not start its host's server, and what to set."""
    for own in said:
        assert "rank 0 could not start the Redis server of its host" in own["unset"]
        assert "PELTON_INTERFACE is not set in the environment" in own["unset"]
        assert "Set it on every rank, or give cluster_mode=False" in own["unset"]
        assert "rank 2 could not start the Redis server of its host" in own["of one host wrong"]
        assert "PELTON_INTERFACE='eth7' in the environment" in own["of one host wrong"]
        assert own["running after refusals"] == 0, "nobody can use the server of the host that had one"


def _check_items(said: list[dict[str, Any]], hosts: Hosts) -> None:
    addresses = [hosts.address(0), hosts.address(1)]
    for rank, own in enumerate(said):
        assert own["own hosts"] == ["127.0.0.1"]
        assert own["own keys"] == _HOST_OF.count(_HOST_OF[rank])
        assert [host["host"] for host in own["hosts"]] == addresses
        assert own["hosts"] == said[0]["hosts"]
        assert own["binds"] == addresses
        assert own["items"] == [[float(item)] * 2 for item in range(_ITEMS)]
        assert sum(own["keys"]) == _ITEMS
        assert all(count > 0 for count in own["keys"])
