"""PELTON_BACKEND=daemon under torchrun: daemons outlive their trainers, and nothing of them is left in the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pelton._training import _daemons
from pelton_run import daemons
from pelton_run.job_folder import folder_of
from spawn import launcher, run

# Rank 1 is killed in the first life of the workers; all print which daemon they have.
TRAINS = """
import json, os, signal, subprocess, sys, torch, pelton.torch_api as bagua
from pelton._training import _session
torch.set_num_threads(1)
bagua.init_process_group()
def total():
    tensor = torch.full((1000,), bagua.get_rank() + 1.0)
    bagua.allreduce_inplace(tensor, op=bagua.ReduceOp.SUM)
    return tensor[0].item()
assert total() == 3.0
assert "PELTON_JOB_TOKEN" not in os.environ
path = _session.current()._place.address.removeprefix("unix:")
def ask():
    return subprocess.run([sys.argv[1], "--socket", path, "--status", "--json"], capture_output=True)
while (asked := ask()).returncode != 0:  # on a busy machine
    print(asked.stderr, file=sys.stderr)
status = json.loads(asked.stdout)
life = os.environ["TORCHELASTIC_RESTART_COUNT"]
text = f"life {life} rank {bagua.get_rank()} pid {os.getpid()} daemon {status['daemon_pid']} in {path}\\n"
os.write(1, text.encode())  # at once, so that lines of two ranks do not mix
if life == "0":
    total()
    if bagua.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
total()
"""


def _torchrun(folder: Path, restarts: int) -> list[str]:
    script = folder / "trains.py"
    script.write_text(TRAINS)
    words = ["--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", str(script), daemons.program()]
    return [sys.executable, "-m", "torch.distributed.run", *words]


def _lines(output: str) -> list[list[str]]:
    """Of each trainer, by life and rank: life L rank R pid P daemon D in PATH."""
    return sorted(line.split() for line in output.splitlines() if line.startswith("life"))


def _await_nothing(pids: list[str], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) or folder.exists():
        assert time.monotonic() < deadline, (pids, list(folder.iterdir()) if folder.exists() else "no folder")
        time.sleep(0.05)


def test_daemons_outlive_a_worker_that_dies(tmp_path: Path) -> None:
    changes = {"PELTON_BACKEND": "daemon", "PELTON_DAEMON_IDLE_TIMEOUT": "300", "TMPDIR": str(tmp_path)}
    outcome = run(_torchrun(tmp_path, 1), 300, changes)
    lines = _lines(outcome.output)
    paths = sorted({line[9] for line in lines})
    try:
        assert outcome.code == 0, outcome.errors
        assert [(line[1], line[3]) for line in lines] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")], (
            outcome.errors
        )
        trainers, ends = [line[5] for line in lines], [line[7] for line in lines]
        assert len(set(trainers)) == 4
        assert ends[:2] == ends[2:]  # the same daemons
        assert len(set(ends)) == len(paths) == 2
    finally:
        for path in paths:
            subprocess.run([daemons.program(), "--socket", path, "--stop"], check=False, timeout=60)
    _await_nothing(ends, Path(paths[0]).parent)


def test_daemons_without_trainers_end_by_themselves_and_leave_nothing(tmp_path: Path) -> None:
    # Longer than it takes a trainer on a busy machine from the start of its daemon to its attaching.
    changes = {"PELTON_BACKEND": "daemon", "PELTON_DAEMON_IDLE_TIMEOUT": "10", "TMPDIR": str(tmp_path)}
    command = _torchrun(tmp_path, 0)
    (tmp_path / "trains.py").write_text(TRAINS.replace('life == "0"', "False"))
    outcome = run(command, 300, changes)
    assert outcome.code == 0, outcome.errors
    lines = _lines(outcome.output)
    assert len(lines) == 2
    _await_nothing([line[7] for line in lines], Path(lines[0][9]).parent)


def test_the_next_job_removes_what_killed_daemons_have_left(tmp_path: Path) -> None:
    changes = {"PELTON_BACKEND": "daemon", "PELTON_DAEMON_IDLE_TIMEOUT": "1", "TMPDIR": str(tmp_path)}
    left, in_use = (folder_of(f"{job} {tmp_path}") for job in ("a killed one", "one that starts"))
    left, in_use = tmp_path / left.name, tmp_path / in_use.name
    for folder in (left, in_use):
        folder.mkdir(mode=0o700)
        for name in ("0", "0.grpc"):  # of a daemon that was killed: nobody listens there
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
                door.bind(str(folder / name))
        (folder / "0.lock").touch()
    with _daemons._locked(in_use, 0, 1):  # by a trainer that is about to start its daemon anew
        command = _torchrun(tmp_path, 0)
        (tmp_path / "trains.py").write_text(TRAINS.replace('life == "0"', "False"))
        outcome = run(command, 300, changes)
        assert outcome.code == 0, outcome.errors
        assert not left.exists()
        assert in_use.exists()
    (mine,) = {Path(line[9]).parent for line in _lines(outcome.output)}
    _await_nothing([], mine)


def test_pelton_run_takes_the_variable_for_its_default(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ['PELTON_COORDINATOR'][:5], flush=True)\n")
    outcome = run(launcher(1, script), 60, {"PELTON_BACKEND": "daemon"})
    assert "unix:" in outcome.output, outcome.errors
    outcome = run(launcher(1, script), 60, {"PELTON_BACKEND": "gloo"})
    assert outcome.code == 2
    assert "PELTON_BACKEND=gloo: must be process or daemon" in outcome.errors


def test_a_job_with_other_settings_has_daemons_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took theirs when they began, and would go on by them."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    monkeypatch.delenv("PELTON_WIRE", raising=False)
    before = _daemons._identity(2)
    monkeypatch.setenv("PELTON_WIRE", "ucx")
    assert _daemons._identity(2) != before
    monkeypatch.delenv("PELTON_WIRE")
    assert _daemons._identity(2) == before
