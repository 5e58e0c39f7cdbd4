"""`pelton run --backend daemon`, and daemons that are started by hand; see docs/daemon.md."""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import accelerator
import pytest
from pelton_run import daemons
from pelton_run.job_folder import folder_of
from pelton_run.ports import port_of, reserve_port
from pelton_run.processes import processes_of
from spawn import OPERATION_TIMEOUT_S, Outcome, case_ids, check_outcome, environment, launcher, run, run_modules

# The cases of these pass with the backend in a daemon as they do in process: some in every run, the others in
# tools/test --long. docs/daemon.md names those that do not.
_IN_EVERY_RUN = (
    "cases.algorithm_state",
    "cases.asynchronous",
    "cases.buckets",
    "cases.c10d_collectives",
    "cases.c10d_store",
    "cases.collectives",
    "cases.data_parallel",
    "cases.training",
    "cases.weight_averaging",
)
_IN_LONG_RUNS = (
    "cases.adam_steps",
    "cases.adams",
    "cases.arguments",
    "cases.autograd",
    "cases.bagua_examples",
    "cases.bluefog_operations",
    "cases.bluefog_optimizers",
    "cases.bluefog_windows",
    "cases.bluefog_world",
    "cases.c10d_edges",
    "cases.c10d_lifecycle",
    "cases.c10d_training",
    "cases.cache",
    "cases.checking",
    "cases.checkpointing",
    "cases.contest",
    "cases.convergence",
    "cases.exchanges",
    "cases.fused_optimizers",
    "cases.groups",
    "cases.habits",
    "cases.habits_of_torch",
    "cases.habits_of_training",
    "cases.moe",
    "cases.momenta",
    "cases.no_sync",
    "cases.profiling",
    "cases.refusals",
    "cases.registration",
    "cases.resharding",
    "cases.saving",
    "cases.saving_experts",
    "cases.saving_failures",
    "cases.scalers",
    "cases.snapshots",
    "cases.step_averaging",
    "cases.sync_batchnorm",
    "cases.together",
    "cases.torch_checkpoint",
    "cases.torch_group",
    "cases.tuning",
    "cases.user_algorithms",
    "cases.wrapping",
)
_NOT = {
    ("cases.profiling", "every_bucket_is_a_range_that_waits_and_one_that_runs"),
    ("cases.profiling", "a_profiler_of_one_rank_disturbs_nobody"),
    ("cases.torch_group", "no_port_is_opened_for_it"),
}
MODULES = (*_IN_EVERY_RUN, *(_IN_LONG_RUNS if "PELTON_LONG" in os.environ else ()))
CASES = [
    (module, name)
    for module in MODULES
    for size, name in sorted(case_ids(module))
    if size == 2 and (module, name) not in _NOT
]
TOKEN = "a-token-of-sixteen-bytes-or-more"
# Both ranks train a small net and print what its weights are, bit by bit.
TRAINING = """
import hashlib, torch, pelton.torch_api as bagua
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
torch.set_num_threads(1)
bagua.init_process_group()
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
net = net.with_bagua([optimizer], GradientAllReduceAlgorithm())
torch.manual_seed(10 + bagua.get_rank())
for step in range(20):
    images, labels = torch.randn(8, 1, 8, 8), torch.randint(10, (8,))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(images), labels).backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters()))
print(digest.hexdigest(), flush=True)
"""
SUM = """
import os, signal, sys, time, torch, pelton.torch_api as bagua
bagua.init_process_group()
rank = bagua.get_rank()
def total():
    tensor = torch.full((1000,), rank + 1.0)
    bagua.allreduce_inplace(tensor)
    return tensor[999].item()
"""
# And what a model needs.
NET = """
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
def wrapped():
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    return net.with_bagua([optimizer], GradientAllReduceAlgorithm()), optimizer
net, optimizer = wrapped()
"""
# A model on what stands in for a GPU, and a step that waits for the device and hears what has failed there.
ON_GPU = """
import accelerator
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
accelerator.load()
device = torch.device(accelerator.NAME, rank)
torch.accelerator.set_device_index(rank)
net = torch.nn.Linear(3, 2).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
net = net.with_bagua([optimizer], GradientAllReduceAlgorithm())
def step_there():
    optimizer.zero_grad()
    net(torch.ones(1, 3).to(device)).sum().backward()
    optimizer.step()
    net.bagua_ddp.algorithm_state_dict()
"""


@functools.cache
def _outcome() -> Outcome:
    return run_modules(2, MODULES, limit_s=max(600, 60 * len(MODULES)), words=("--backend", "daemon"))


@pytest.mark.parametrize(("module", "name"), CASES)
def test_cases_pass_with_a_daemon(module: str, name: str) -> None:
    check_outcome(_outcome(), module, 2, name)


def _script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_training_gives_the_same_bits_as_in_process(tmp_path: Path) -> None:
    script = _script(tmp_path, TRAINING)
    digests = set()
    for words in ((), ("--backend", "daemon")):
        outcome = run(launcher(2, *words, script), 120)
        assert outcome.code == 0, outcome.errors
        lines = outcome.output.split()
        assert len(lines) == 6, outcome.output
        digests |= {line for line in lines if len(line) == 64}
    assert len(digests) == 1


def test_no_trainer_has_the_token_and_nothing_is_left(tmp_path: Path) -> None:
    text = "import os\nprint('PELTON_JOB_TOKEN' in os.environ, os.environ['PELTON_LAUNCH_MARK'])\n"
    outcome = run(launcher(2, "--backend", "daemon", _script(tmp_path, text)), 60)
    assert outcome.code == 0, outcome.errors
    words = outcome.output.split()
    assert words.count("False") == 2
    mark = words[3]
    assert processes_of(mark) == []
    assert not os.path.exists(folder_of(mark))


def test_a_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    text = "import os, time\nprint(os.environ['PELTON_LAUNCH_MARK'], flush=True)\ntime.sleep(600)\n"
    process = subprocess.Popen(
        launcher(2, "--backend", "daemon", _script(tmp_path, text)),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    mark = process.stdout.readline().split()[-1]
    assert len(processes_of(mark)) == 4
    process.kill()
    process.wait()
    process.stdout.close()
    _await(lambda: not processes_of(mark) and not os.path.exists(folder_of(mark)))


def test_a_program_that_is_missing_is_said(tmp_path: Path) -> None:
    outcome = run(
        launcher(1, "--backend", "daemon", _script(tmp_path, "")), 60, {"PELTON_DAEMON": "/nowhere/pelton-daemon"}
    )
    assert outcome.code == 2
    assert "/nowhere/pelton-daemon is no program" in outcome.errors


def _await(condition: Callable[[], bool], limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class _ByHand:
    """Two daemons of a job. Threads: one. Owns: their processes and the folder of their sockets."""

    def __init__(self, folder: str, *words: str) -> None:
        self._folder = folder
        self.daemons: list[subprocess.Popen[bytes]] = []
        with reserve_port() as reserved:
            coordinator = f"127.0.0.1:{port_of(reserved)}"
            for rank in range(2):
                place = ["--rank", str(rank), "--world-size", "2", "--coordinator", coordinator]
                command = [daemons.program(), "--socket", self.socket(rank), *place, *words]
                changes = {"PELTON_JOB_TOKEN": TOKEN}
                self.daemons.append(subprocess.Popen(command, env=environment(changes), stderr=subprocess.PIPE))
            _await(lambda: all(os.path.exists(self.socket(rank)) for rank in range(2)))
            self.status(0)  # answered once it has joined

    def socket(self, rank: int) -> str:
        return f"{self._folder}/{rank}"

    def status(self, rank: int) -> str:
        command = [daemons.program(), "--socket", self.socket(rank), "--status"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    def trainer(self, rank: int, text: str, changes: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        place: Mapping[str, str] = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "PELTON_COORDINATOR": f"unix:{self.socket(rank)}",
        }
        return subprocess.Popen(
            [sys.executable, "-c", SUM + text],
            env=environment({**place, **(changes or {})}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> None:
        for daemon in self.daemons:
            if daemon.poll() is None:
                daemon.terminate()
        for daemon in self.daemons:
            daemon.communicate(timeout=60)


@pytest.fixture
def by_hand() -> Iterator[_ByHand]:
    with tempfile.TemporaryDirectory() as folder:  # of mode 0700, and short
        job = _ByHand(folder)
        yield job
        job.end()


def test_daemons_outlive_a_trainer_that_is_killed(by_hand: _ByHand) -> None:
    first = [by_hand.trainer(rank, "print(total(), flush=True)\n") for rank in range(2)]
    assert [trainer.communicate(timeout=60)[0].split() for trainer in first] == [["3.0"], ["3.0"]]
    dying = by_hand.trainer(1, "total()\nos.kill(os.getpid(), signal.SIGKILL)\n")
    other = by_hand.trainer(0, "total()\ntotal()\n")
    assert f"rank 1's trainer (pid {dying.pid}) is gone" in other.communicate(timeout=60)[1]
    dying.communicate(timeout=60)
    again = [by_hand.trainer(rank, "print(total(), flush=True)\n") for rank in range(2)]
    assert [trainer.communicate(timeout=60)[0].split() for trainer in again] == [["3.0"], ["3.0"]]
    assert "attachments 3" in by_hand.status(0)
    assert [daemon.poll() for daemon in by_hand.daemons] == [None, None]


def test_a_killed_trainers_peers_end_on_their_gpus_too(by_hand: _ByHand) -> None:
    changes = accelerator.environment()
    dying = by_hand.trainer(1, ON_GPU + "step_there()\nos.kill(os.getpid(), signal.SIGKILL)\n", changes)
    waits = (
        "step_there()\nbegan = time.monotonic()\n"
        "try:\n    step_there()\n"
        "except Exception as error:\n    print(type(error).__name__, time.monotonic() - began, flush=True)\n    raise\n"
    )
    other = by_hand.trainer(0, ON_GPU + waits, changes)
    output, errors = other.communicate(timeout=120)
    dying.communicate(timeout=60)
    name, seconds = output.split()
    assert name == "PeerLost" and float(seconds) < OPERATION_TIMEOUT_S / 2, output
    # NCCL may see the end of its connection before the daemons have told.
    assert re.search(rf"rank 1's trainer \(pid {dying.pid}\) is gone|remote process exited", errors), errors
    again = [by_hand.trainer(rank, ON_GPU + "step_there()\nprint(total(), flush=True)\n", changes) for rank in range(2)]
    assert [trainer.communicate(timeout=120)[0].split() for trainer in again] == [["3.0"], ["3.0"]]
    assert "attachments 2" in by_hand.status(0)
    assert [daemon.poll() for daemon in by_hand.daemons] == [None, None]


@pytest.mark.parametrize(
    ("before", "call"),
    [("", "total()"), (NET, "step(net, optimizer)"), (ON_GPU, "step_there()")],
    ids=["collective", "round", "on a GPU"],
)
def test_a_killed_daemon_ends_its_trainers_wait_by_name(by_hand: _ByHand, before: str, call: str) -> None:
    """The other rank's trainer takes no part, so that only the daemon's death can end the wait."""
    changes = accelerator.environment() if before == ON_GPU else {}
    waits = (
        f"{call}\nprint('waits', flush=True)\n"
        f"try:\n    {call}\n"
        "except Exception as error:\n    print(time.time(), type(error).__name__, flush=True)\n    raise\n"
    )
    here = by_hand.trainer(0, before + waits, changes)
    there = by_hand.trainer(1, before + f"{call}\nprint('sleeps', flush=True)\ntime.sleep(600)\n", changes)
    try:
        for trainer in (here, there):
            assert trainer.stdout is not None
            trainer.stdout.readline()
        time.sleep(0.2)  # it has said that it waits just before it does
        assert here.poll() is None
        killed_at = time.time()
        by_hand.daemons[0].send_signal(signal.SIGKILL)
        output, errors = here.communicate(timeout=60)
        ended_at, name = output.split()
        assert float(ended_at) - killed_at < 1.0
        assert name == "PeerLost"
        assert "rank 0" in errors
        assert re.search(rf"pelton-daemon.* \(pid {by_hand.daemons[0].pid}\) is gone", errors)
    finally:
        there.kill()
        there.communicate()


def test_a_trainer_goes_on_with_a_new_daemon(by_hand: _ByHand) -> None:
    """Its tensors stay readable, gradients in the lost daemon's memory too."""
    text = (
        "step(net, optimizer)\n"
        "print('trained', flush=True)\n"
        "try:\n"
        "    while True:\n"
        "        step(net, optimizer)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, flush=True)\n"
        "weights = [p.detach().clone() for p in net.parameters()]\n"
        "print(all(p.grad.isfinite().all() for p in net.parameters()), flush=True)\n"
        "bagua.destroy_process_group()\n"
        "print(all(torch.equal(p, w) for p, w in zip(net.parameters(), weights)), flush=True)\n"
        "os.environ['PELTON_COORDINATOR'] = os.environ['SECOND']\n"
        "bagua.init_process_group()\n"
        "step(*wrapped())\n"
        "print(total(), flush=True)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        second = _ByHand(folder)
        trainers = [by_hand.trainer(rank, NET + text, {"SECOND": f"unix:{second.socket(rank)}"}) for rank in range(2)]
        try:
            for trainer in trainers:
                assert trainer.stdout is not None
                assert trainer.stdout.readline() == "trained\n"
            by_hand.daemons[1].send_signal(signal.SIGKILL)
            said = [trainer.communicate(timeout=120) for trainer in trainers]
            assert [output.split() for output, _ in said] == [["PeerLost", "True", "True", "3.0"]] * 2, said
        finally:
            for trainer in trainers:
                trainer.kill()
                trainer.wait()
            second.end()


def _said_to(user: int, path: str) -> bytes:
    """What a daemon answers to a question for its status from a process of `user`."""
    # A packet of backend/link/link_socket.h: magic, length, offset, descriptors; in it a LinkHello.
    hello = b"\x08\x01\x10\x04"
    packet = struct.pack("=IIII", 0x504C4B01, len(hello), 0, 0) + hello
    reading, writing = os.pipe()
    child = os.fork()  # not exec: what the environment is made of may be closed to that user
    if child == 0:
        try:
            os.setresuid(user, user, user)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
                link.settimeout(30)
                link.connect(path)
                link.send(packet)
                os.write(writing, link.recv(1 << 16))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_and_the_daemon_lives_on(by_hand: _ByHand) -> None:
    path = by_hand.socket(0)
    nobody = 65534
    os.chmod(os.path.dirname(path), 0o711)  # the folder's mode alone would keep that user out
    os.chmod(path, 0o777)
    refusal = f"this daemon serves user {os.geteuid()}, and the connection is of user {nobody}"
    assert refusal.encode() in _said_to(nobody, path)
    assert b"this daemon serves" not in _said_to(os.geteuid(), path)
    assert "attachments 0" in by_hand.status(0)
    trainers = [by_hand.trainer(rank, "print(total(), flush=True)\n") for rank in range(2)]
    assert [trainer.communicate(timeout=60)[0].split() for trainer in trainers] == [["3.0"], ["3.0"]]


def test_models_that_differ_are_refused_and_the_daemons_live_on(by_hand: _ByHand) -> None:
    differs = NET.replace("torch.nn.Linear(3, 2)", "torch.nn.Linear(3, 2 + 2 * rank)")
    for text in (differs, NET):
        trainers = [by_hand.trainer(rank, text + "print(total(), flush=True)\n") for rank in range(2)]
        said = [trainer.communicate(timeout=60) for trainer in trainers]
        if text is NET:
            assert [output.split() for output, _ in said] == [["3.0"], ["3.0"]], said
            continue
        for output, errors in said:
            assert output == ""
            assert "FailedPrecondition" in errors or "differ" in errors, errors
            assert "weight" in errors or "bias" in errors, errors
    assert [daemon.poll() for daemon in by_hand.daemons] == [None, None]


STEPS = (
    "from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm\n"
    "net = torch.nn.Linear(3, 2)\n"
    "optimizer = torch.optim.SGD(net.parameters(), lr=0.5)\n"
    "net = net.with_bagua([optimizer], GradientAllReduceAlgorithm())\n"
    "def step():\n"
    "    optimizer.zero_grad()\n"
    "    net(torch.ones(1, 3)).sum().backward()\n"
    "    optimizer.step()\n"
    "for _ in range(4):\n"
    "    step()\n"
    "print('trained', flush=True)\n"
)


def test_the_status_tells_of_a_linked_models_rounds(by_hand: _ByHand) -> None:
    trainers = [by_hand.trainer(rank, STEPS + "sys.stdin.readline()\nstep()\n") for rank in range(2)]
    for trainer in trainers:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "trained\n"
    said = by_hand.status(0)
    assert f"trainer {trainers[0].pid} attachments 1 round 5 " in said
    assert "round 5 buckets 1 ready 0 complete 0" in said
    assert trainers[0].stdin is not None
    trainers[0].stdin.write("\n")
    trainers[0].stdin.flush()
    _await(lambda: "waiting for rank 1" in by_hand.status(0))
    assert "ready 1 complete 0, its trainer waits since" in by_hand.status(0)
    assert trainers[1].stdin is not None
    trainers[1].stdin.write("\n")
    trainers[1].stdin.flush()
    assert [trainer.communicate(timeout=60)[1] for trainer in trainers] == ["", ""]


def _in_mid_step(job: _ByHand) -> list[subprocess.Popen[str]]:
    """Rank 0 is in its fifth step, which rank 1 takes after a line; both go on until they are told why not."""
    text = STEPS + (
        "if rank == 1:\n"
        "    sys.stdin.readline()\n"
        "try:\n"
        "    step()\n"
        "    print('stepped', flush=True)\n"
        "    while True:\n"
        "        step()\n"
        "except Exception as error:\n"
        "    print(error, flush=True)\n"
    )
    trainers = [job.trainer(rank, text) for rank in range(2)]
    for trainer in trainers:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "trained\n"
    _await(lambda: "its trainer waits since" in job.status(0))
    return trainers


def test_sigterm_lets_the_step_under_way_end() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = _ByHand(folder, "--step-grace", "60")
        trainers = _in_mid_step(job)
        job.daemons[0].terminate()
        assert trainers[1].stdin is not None
        trainers[1].stdin.write("\n")
        trainers[1].stdin.flush()
        said = [trainer.communicate(timeout=90)[0] for trainer in trainers]
        assert [text.split("\n")[0] for text in said] == ["stepped", "stepped"], said
        assert f"(pid {job.daemons[0].pid})" in said[0]  # told, or seen by the end of the connection
        assert job.daemons[0].wait(timeout=60) == 0
        job.end()


def test_sigterm_ends_a_step_that_takes_too_long_with_its_reason_on_all_ranks() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = _ByHand(folder, "--step-grace", "0.5")
        trainers = _in_mid_step(job)
        job.daemons[0].terminate()
        for trainer in trainers:  # rank 1 steps at the end of its input
            said = trainer.communicate(timeout=90)[0]
            assert "stepped" not in said
            assert f"rank 0 (pid {job.daemons[0].pid}) was told to end, and the step did not end before" in said
        assert job.daemons[0].wait(timeout=60) == 0
        job.end()


def test_a_daemon_ends_in_good_order_and_by_request(by_hand: _ByHand) -> None:
    command = [daemons.program(), "--socket", by_hand.socket(0), "--stop"]
    by_hand.daemons[1].terminate()
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
    assert [daemon.wait(timeout=60) for daemon in by_hand.daemons] == [0, 0]
    assert not os.path.exists(by_hand.socket(0))


def test_folders_that_nobody_serves_go_with_the_next_job(tmp_path: Path) -> None:
    left = tmp_path / "pelton-0123456789abcdef"
    left.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nobody:
        nobody.bind(str(left / "0"))
    other = tmp_path / "pelton-of-something-else"
    other.mkdir()
    (other / "file").write_text("kept")
    script = tmp_path / "nothing.py"
    script.write_text("")
    outcome = run(launcher(1, "--backend", "daemon", script), 60, {"TMPDIR": str(tmp_path)})
    assert outcome.code == 0, outcome.errors
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["nothing.py", other.name]


def test_a_long_temporary_folder_is_not_in_the_way(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    script = tmp_path / "hello.py"
    script.write_text("import pelton.torch_api as bagua; bagua.init_process_group(); print('hello', flush=True)")
    outcome = run(launcher(2, "--backend", "daemon", script), 120, {"TMPDIR": str(long)})
    assert outcome.code == 0, outcome.errors
    assert outcome.output.count("hello") == 2
