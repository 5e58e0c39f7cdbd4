"""`pelton status` and `pelton top`: what a job is at, seen from outside, in process and with daemons."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pelton_run import job_folder, stacks
from spawn import environment, launcher, run

COMMAND = [sys.executable, "-c", "import sys; from pelton_run.command_line import main; sys.exit(main(sys.argv[1:]))"]
# Rank 1 stands in Python, in a function of a telling name, before its third step; rank 0 waits for it.
STANDS = """
import os, time, torch, pelton.torch_api as bagua
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
torch.set_num_threads(1)
bagua.init_process_group()
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
net = net.with_bagua([optimizer], GradientAllReduceAlgorithm())
def loads_its_data_for_ever():
    time.sleep(600)
for step in range(3):
    if step == 2:
        print(os.environ.get("PELTON_SIGHT"), os.getpid(), flush=True)
        if bagua.get_rank() == 1:
            loads_its_data_for_ever()
    optimizer.zero_grad()
    net(torch.ones(1, 8)).sum().backward()
    optimizer.step()
"""


class _Job:
    """A job that stands. Threads: one. Owns: its processes."""

    def __init__(self, folder: Path, *words: str) -> None:
        script = folder / "stands.py"
        script.write_text(STANDS)
        self.process = subprocess.Popen(
            launcher(2, *words, script), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        lines = sorted(self.process.stdout.readline().split() for _ in range(2))
        assert [line[:2] for line in lines] == [["[rank", "0]"], ["[rank", "1]"]], lines
        self.folder = lines[0][2]
        self.pids = [int(line[3]) for line in lines]

    def status(self, *words: str) -> str:
        outcome = run([*COMMAND, "status", self.folder, *words], 60)
        assert outcome.code == 0, outcome.errors
        return outcome.output

    def end(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=[(), ("--backend", "daemon")], ids=["process", "daemon"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Job]:
    started = _Job(tmp_path, *request.param)
    yield started
    started.end()


def _await(said: Callable[[], str], *wanted: str) -> str:
    end = time.monotonic() + 60
    while not all(text in (now := said()) for text in wanted):
        assert time.monotonic() < end, now
    return now


def test_it_says_who_waits_for_whom_and_where_the_other_stands(job: _Job) -> None:
    text = _await(lambda: job.status("--stuck", "0.5"), "waiting for rank 1", "loads_its_data_for_ever")
    first, second = text.split("  rank 1  ")
    assert f"rank 0  pid {job.pids[0]}" in first
    assert second.startswith(f"pid {job.pids[1]}")
    assert "2 ranks on 1 host\n" in first
    for part in (first, second):
        assert "round 3" in part
        assert "sent " in part
    assert "1 buckets, 1 ready, 0 complete" in first
    assert "the trainer waits for the round" in first
    assert "0 ready" in second
    assert "stands since" in second
    assert "stands.py" in second


def test_a_trainer_that_is_stopped_is_said_to_be(job: _Job) -> None:
    os.kill(job.pids[1], signal.SIGSTOP)
    if "daemon" in job.status():
        text = _await(lambda: job.status("--stuck", "0.1"), "it is stopped, by a signal or a debugger")
        assert "round 3" in text.split("  rank 1  ")[1]
    else:  # the door is in the process that is stopped
        assert "  rank 1: unknown, " in _await(job.status, "rank 1: unknown")


def test_top_looks_again_and_again(job: _Job) -> None:
    outcome = run([*COMMAND, "top", job.folder, "-d", "0.1", "-n", "3"], 60)
    assert outcome.code == 0, outcome.errors
    assert outcome.output.count("2 ranks on 1 host") == 3


def test_without_a_job_there_is_nothing_to_see(tmp_path: Path) -> None:
    outcome = run([*COMMAND, "status"], 60, {"TMPDIR": str(tmp_path)})
    assert outcome.code in (0, 1)  # others of this user may run, with a folder in /tmp
    assert str(tmp_path) not in outcome.output
    assert run([*COMMAND, "status", str(tmp_path)], 60).output == f"job in {tmp_path}: no rank has joined yet\n"


def test_a_folders_name_keeps_the_mark_secret() -> None:
    mark = "0123456789abcdef0123456789abcdef"
    assert not any(mark[at : at + 4] in job_folder.folder_of(mark).name for at in range(len(mark) - 4))


def test_a_process_that_does_not_take_the_signal_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stacks.path_of(tmp_path, other.pid).touch()
        with pytest.raises(stacks.Unknown, match="does not take the signal"):
            stacks.ask(tmp_path, other.pid)
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()
