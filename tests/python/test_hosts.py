"""Ranks on several hosts: network namespaces, or labels where those are not permitted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pelton.torch_api.env import find_free_network_port
from spawn import HERE, environment, launcher, run

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.network.hosts import Hosts

_LIMIT_S = 120
_PORT = "29713"  # of a namespace that nobody else is in
_SCRIPT = [sys.executable, str(HERE / "host_main.py")]

Start = Callable[[int, dict[str, str]], "subprocess.Popen[str]"]  # takes the rank and its environment


def _run(host_of: list[int], address: str, port: str, start: Start) -> list[dict[str, Any]]:
    """Starts every rank and returns what each printed."""
    processes = []
    for rank in range(len(host_of)):
        here = [r for r in range(len(host_of)) if host_of[r] == host_of[rank]]
        place = {
            "RANK": rank,
            "WORLD_SIZE": len(host_of),
            "LOCAL_RANK": here.index(rank),
            "LOCAL_WORLD_SIZE": len(here),
        }
        changes = {name: str(value) for name, value in place.items()}
        processes.append(start(rank, environment({**changes, "MASTER_ADDR": address, "MASTER_PORT": port})))
    try:
        outputs = [process.communicate(timeout=_LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, process in enumerate(processes):
        assert process.returncode == 0, f"rank {rank}:\n{outputs[rank][1]}"
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def _check(results: list[dict[str, Any]], host_of: list[int]) -> None:
    size = len(host_of)
    for rank, result in enumerate(results):
        assert result["host_ranks"] == [r for r in range(size) if host_of[r] == host_of[rank]]
        assert result["sum"] == [size * (size + 1) / 2]
        assert result["mean"] == [(size - 1) / 2]
        assert result["weights"] == results[0]["weights"]  # SUM-1a, and what is quantised, too
        for name, error in result["errors"].items():
            assert error < (1e-2 if name == "bytegrad" else 1e-6), name  # a byte an element


@pytest.mark.parametrize(
    ("hosts", "host_of", "wire"),
    [(0, [0, 0, 1, 1], "tcp"), (0, [0, 1, 1], "ucx"), (0.02, [0, 0, 1], "tcp")],
    ids=["two_and_two", "one_and_two_over_ucx", "far_apart"],
    indirect=["hosts"],
)
def test_ranks_of_two_hosts_reduce_and_train(hosts: Hosts, host_of: list[int], wire: str) -> None:
    """Memory is shared inside each namespace only, and the mean is that over the ranks."""

    def start(rank: int, variables: dict[str, str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        changes = {"PELTON_WIRE": wire, "PELTON_INSECURE": "1"}
        return hosts.popen(host_of[rank], _SCRIPT, env={**variables, **changes}, stdout=pipe, stderr=pipe)

    _check(_run(host_of, hosts.address(0), _PORT, start), host_of)


def test_daemons_of_two_hosts_meet_at_the_interface_that_is_named(hosts: Hosts, tmp_path: Path) -> None:
    """They do not share a folder for temporary files, as two hosts do not."""

    def start(rank: int, variables: dict[str, str]) -> subprocess.Popen[str]:
        folder = tmp_path / str(rank)
        folder.mkdir()
        changes = {"PELTON_BACKEND": "daemon", "PELTON_DAEMON_IDLE_TIMEOUT": "5", "TMPDIR": str(folder)}
        changes |= {"PELTON_INTERFACE": "eth0", "PELTON_INSECURE": "1"}
        pipe = subprocess.PIPE
        return hosts.popen(rank, _SCRIPT, env={**variables, **changes}, stdout=pipe, stderr=pipe)

    _check(_run([0, 1], hosts.address(0), _PORT, start), [0, 1])


def test_the_token_does_not_cross_the_network_in_clear(hosts: Hosts) -> None:
    """Both ranks are told at once why, and what to do."""
    processes = []
    for rank in (0, 1):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": hosts.address(0), "MASTER_PORT": _PORT}
        pipe = subprocess.PIPE
        processes.append(hosts.popen(rank, _SCRIPT, env=environment(place), stdout=pipe, stderr=pipe))
    try:
        texts = [process.communicate(timeout=_LIMIT_S)[1].splitlines()[-1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for text in texts:
        assert "FailedPrecondition" in text
        assert "rank 1 is on another host" in text
        assert "PELTON_INSECURE=1" in text


def test_labels_keep_ranks_of_one_machine_apart() -> None:
    """Also where namespaces are not permitted."""
    host_of = [0, 0, 1]

    def start(rank: int, variables: dict[str, str]) -> subprocess.Popen[str]:
        variables["PELTON_HOST_LABEL"] = f"host{host_of[rank]}"
        pipe = subprocess.PIPE
        return subprocess.Popen(_SCRIPT, env=variables, stdout=pipe, stderr=pipe, text=True)

    _check(_run(host_of, "127.0.0.1", str(find_free_network_port()), start), host_of)


THROUGH_TORCH = """
import torch, torch.distributed as dist
from pelton.distributed import _process_group
dist.init_process_group("pelton")
tensor = torch.ones(3)
dist.all_reduce(tensor)
(world,) = _process_group._worlds
print(world.backend.host_ranks(), tensor.tolist())
dist.destroy_process_group()
"""


def test_torchs_door_heeds_every_variable(tmp_path: Path) -> None:
    """A label stands for all that say how hosts are joined; the certificates have a test of their own."""
    program = tmp_path / "program.py"
    program.write_text(f"import os\nos.environ['PELTON_HOST_LABEL'] = 'h' + os.environ['RANK']\n{THROUGH_TORCH}")
    outcome = run(launcher(2, program), _LIMIT_S)
    assert sorted(outcome.output.splitlines()) == [f"[rank {r}] [{r}] [2.0, 2.0, 2.0]" for r in (0, 1)], outcome.errors
