"""A job that is killed as a whole, in the middle of training or of averages by windows, leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import belongings
import pytest
from belongings import Belongings, abstract_names, listening_addresses, of_processes, still_there
from pelton_run.processes import processes_of
from spawn import HERE, environment, launcher

WORLD_SIZE = 3
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F")  # as /proc/net/tcp and tcp6 write it
# A kernel takes memory and sockets back when the last thread of a process is gone, on a busy machine a little later.
GONE_WITHIN_S = 10.0


@pytest.fixture(params=["trains_until_killed", "averages_until_killed"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A job that goes on until it is killed; all its ranks have done some steps."""
    (tmp_path / "tmp").mkdir()
    script = HERE / "cases" / "faults.py"
    process = subprocess.Popen(
        launcher(WORLD_SIZE, script, request.param, tmp_path),
        env=environment({"TMPDIR": str(tmp_path / "tmp")}),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = {process.stdout.readline().strip() for _ in range(WORLD_SIZE)}
        assert ready == {f"[rank {rank}] training" for rank in range(WORLD_SIZE)}
        yield process
    finally:
        process.kill()
        process.communicate()


def _left(pids: list[int], belongings: Belongings) -> dict[str, list[str]]:
    alive = [f"process {pid}" for pid in pids if os.path.exists(f"/proc/{pid}")]
    return {**still_there(belongings), **({"processes": alive} if alive else {})}


def test_a_killed_job_leaves_nothing(job: subprocess.Popen[str], tmp_path: Path) -> None:
    """SIGKILL to every rank and to the launcher: none of them can clean up."""
    token = _token_of(job.pid)
    ranks = _ranks_of(job.pid)
    assert len(ranks) == WORLD_SIZE
    everyone = sorted({job.pid, *processes_of(token)})
    held = of_processes(everyone)
    # It does hold what could be left: else this test would show nothing.
    assert all(name.startswith("@pelton-") for name in abstract_names(held))
    assert len(abstract_names(held)) >= WORLD_SIZE - 1
    listening = listening_addresses(held)
    assert len(listening) == 1, listening  # the coordinator
    assert listening[0].split(":")[0] in LOOPBACK
    assert len(held.memory) >= WORLD_SIZE

    for pid in [*ranks, job.pid]:
        os.kill(pid, signal.SIGKILL)
    job.wait(GONE_WITHIN_S)
    end = time.monotonic() + GONE_WITHIN_S
    while (left := _left(everyone, held)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left
    assert not processes_of(token)
    # Torch makes a folder for its compiler's cache wherever an optimizer is made or a function is kept from it.
    assert not [entry for entry in os.listdir(tmp_path / "tmp") if not entry.startswith("torchinductor_")]


def test_a_checkout_below_a_shared_folder_is_nobodys_leftover(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its libraries are mapped by every rank, and stay."""
    monkeypatch.setattr(belongings, "_INSTALLED", ("/tmp/checkout/",))
    assert not belongings._could_be_left("/tmp/checkout/.venv/lib/libtorch.so")
    assert belongings._could_be_left("/tmp/checkout-of-another/socket")
    assert belongings._could_be_left("/dev/shm/pelton")
    assert not belongings._could_be_left("/dev/shm/pelton (deleted)")


def _ranks_of(launcher_pid: int) -> list[int]:
    path = Path(f"/proc/{launcher_pid}/task/{launcher_pid}/children")
    return [pid for pid in map(int, path.read_text().split()) if _variable(pid, "RANK") is not None]


def _token_of(launcher_pid: int) -> str:
    """The job's token as its first rank got it."""
    token = _variable(_ranks_of(launcher_pid)[0], "PELTON_JOB_TOKEN")
    assert token is not None
    return token


def _variable(pid: int, name: str) -> str | None:
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    found = [line.split(b"=", 1)[1].decode() for line in lines if line.startswith(f"{name}=".encode())]
    return found[0] if found else None
