"""`pelton run --max-restarts`: ranks and daemons that die, and training that goes on bit by bit; see docs/daemon.md."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from pelton_run.daemons import PROGRAM_VARIABLE, Daemons, PlaceQuestion
from pelton_run.job_folder import folder_of
from pelton_run.processes import processes_of
from spawn import Outcome, environment, launcher, run

STEPS = 12
BACKENDS = ("process", "daemon")
# name of the algorithm, and how often its snapshots are taken
ALGORITHMS = (("gradient_allreduce", 1), ("bytegrad", 1), ("q_adam", 1), ("decentralized", 1), ("local_sgd", 2))
# Each takes twenty seconds: of both backends one, of the others tools/test --long runs all.
WAYS: tuple[tuple[str, str, int], ...] = (("process", "q_adam", 1), ("daemon", "local_sgd", 2))
if "PELTON_LONG" in os.environ:
    WAYS = tuple((backend, *algorithm) for backend in BACKENDS for algorithm in ALGORITHMS)
TRAINING = """
import hashlib, os, signal, sys, time, torch, pelton.torch_api as bagua
from pelton.torch_api.algorithms import bytegrad, decentralized, gradient_allreduce, local_sgd, q_adam
from pelton.torch_api.checkpoint import Snapshots
torch.set_num_threads(1)
name, every, steps, deaths = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
bagua.init_process_group()
rank, restarts = bagua.get_rank(), int(os.environ.get("PELTON_RESTART_COUNT", "0"))

def may_die(step, place):
    if restarts < len(deaths) and deaths[restarts] == f"{rank}:{step}:{place}":
        os.kill(os.getpid(), signal.SIGKILL)

torch.manual_seed(1)
net = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 160),
    torch.nn.Linear(160, 10),
)  # one layer is large enough for its weights to be copied beside the next passes
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
if name == "q_adam":
    optimizer = q_adam.QAdamOptimizer(net.parameters(), lr=0.01, warmup_steps=4)
algorithm = {
    "gradient_allreduce": gradient_allreduce.GradientAllReduceAlgorithm,
    "bytegrad": lambda: bytegrad.ByteGradAlgorithm(hierarchical=False, codec="one_bit"),
    "q_adam": lambda: q_adam.QAdamAlgorithm(optimizer, hierarchical=False),
    "decentralized": lambda: decentralized.DecentralizedAlgorithm(hierarchical=False),
    "local_sgd": lambda: local_sgd.LocalSGDAlgorithm(2),
}[name]()
net = net.with_bagua([optimizer], algorithm)
snapshots = Snapshots(net, optimizer, every)
torch.manual_seed(10 + rank)
began = time.monotonic()
done, extra = snapshots.restore()
assert extra == (b"left by %d at %d" % (rank, done) if done else b""), extra
print(f"from {done}", flush=True)
for step in range(done + 1, steps + 1):
    images, labels = torch.randn(8, 1, 8, 8), torch.randint(10, (8,))
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(images), labels)
    may_die(step, "forward")
    hook = net[0].weight.register_hook(lambda _: may_die(step, "gradient"))  # of the layer whose gradients come last
    loss.backward()
    hook.remove()
    may_die(step, "backward")
    optimizer.step()
    may_die(step, "step")
    if step == done + 1 and restarts:
        print(f"trained {time.monotonic() - began:.3f} s after restoring began", flush=True)
    snapshots.keep(step, b"left by %d at %d" % (rank, step))
    may_die(step, "kept")
digest = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in net.state_dict().values()))
print(f"rank {rank} ended with {digest.hexdigest()}", flush=True)
bagua.communication.barrier()
"""

GRAPH_BY_HAND = """
import os, networkx, torch, pelton, pelton.torch_api as bagua
torch.set_num_threads(1)
bagua.init_process_group()
graph = networkx.DiGraph()
graph.add_weighted_edges_from((source, destination, 0.5) for source in (0, 1) for destination in (0, 1))
for given in (graph, "ring"):
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    try:
        net.with_bagua([optimizer], pelton.algorithm("exact_diffusion", graph=given))
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        os.write(1, b"trained\\n")  # one write, so that the lines of two ranks do not mix
    except pelton.errors.InvalidArgument as error:
        os.write(1, f"{error}\\n".encode())
bagua.communication.barrier()
"""


def _train(folder: Path, backend: str, name: str, every: int, *words: object, restarts: int = 0) -> Outcome:
    script = folder / "script.py"
    script.write_text(TRAINING)
    flags = ("--backend", backend, "--max-restarts", restarts, "--trainer-grace", 0, "--linger", 2)
    return run(launcher(2, *flags, script, name, every, STEPS, *words), 300)


def _digests(outcome: Outcome) -> list[str]:
    """The last ones of both ranks, in order: one that was restarted after its end says it twice."""
    assert outcome.code == 0, outcome.errors
    lines = [line.split() for line in outcome.output.splitlines() if " ended with " in line]
    found = {words[-4]: words[-1] for words in lines}
    return [found["0"], found["1"]]


def _beginnings(outcome: Outcome) -> list[int]:
    return [int(line.split()[-1]) for line in outcome.output.splitlines() if "] from " in line]


@pytest.mark.parametrize(("backend", "name", "every"), WAYS)
def test_killed_trainers_end_with_the_same_bits(tmp_path: Path, backend: str, name: str, every: int) -> None:
    undisturbed = _digests(_train(tmp_path, backend, name, every))
    disturbed = _train(tmp_path, backend, name, every, "1:5:step", "0:8:kept", "1:9:backward", restarts=3)
    assert _digests(disturbed) == undisturbed, disturbed.output
    # Both ranks go back to one step each time, and never to one before the last that both have kept. What is kept is
    # through when the next backward pass ends.
    second = 8 - every
    assert _beginnings(disturbed) == [0, 0, 4, 4, second, second, 8, 8], disturbed.output


@pytest.mark.parametrize("name", ["gradient_allreduce", "bytegrad"])
def test_one_trainer_comes_back_while_the_other_waits(tmp_path: Path, name: str) -> None:
    undisturbed = _digests(_train(tmp_path, "daemon", name, 1))
    script = tmp_path / "script.py"
    flags = ("--backend", "daemon", "--max-restarts", 3, "--linger", 2)
    deaths = ("1:5:step", "1:7:kept", "1:9:gradient")
    disturbed = run(launcher(2, *flags, script, name, 1, STEPS, *deaths), 300)
    assert _digests(disturbed) == undisturbed, disturbed.output
    # What was kept before the seventh step's end is not through. The eighth may be, or not, when the ninth's gradients
    # come: then the heir repeats a round that has ended while another one is open.
    assert _beginnings(disturbed) in ([0, 0, 4, 6, 7], [0, 0, 4, 6, 8]), disturbed.output
    assert disturbed.errors.count("starting rank 1 again") == 3, disturbed.errors
    for told in (" warning ", "[rank 0] pelton: "):
        assert f"{told}rank 1's trainer (pid " in disturbed.errors, disturbed.errors
    assert "starting all ranks again" not in disturbed.errors
    times = [float(line.split()[3]) for line in disturbed.output.splitlines() if "] trained " in line]
    assert len(times) == 3 and max(times) < 3, disturbed.output


# Both wait for rank 1 as long as is allowed, which is less than its heir takes to come.
WAITS = """
import datetime, os, signal, threading, time
if os.environ["RANK"] == "1" and os.environ["PELTON_RESTART_COUNT"] == "1":
    time.sleep(7)
import torch, torch.distributed as dist, pelton.torch_api as bagua
from pelton.distributed import Store
from pelton.torch_api.checkpoint import Snapshots
bagua.init_process_group(torch_distributed=False)
dist.init_process_group("pelton")
snapshots = Snapshots(torch.nn.Linear(3, 2))
done, _ = snapshots.restore()
store, limit = Store(), datetime.timedelta(seconds=5)
if dist.get_rank() == 1:
    if not done:
        snapshots.keep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    store.set("back", "yes")
    dist.send(torch.ones(1), 0)
else:
    keys = threading.Thread(target=lambda: (store.wait(["back"], limit), print("key", flush=True)))
    keys.start()
    received = torch.zeros(1)
    dist.irecv(received, 1).wait(limit)
    print("received", received.item(), flush=True)
    keys.join()
dist.destroy_process_group()
"""


def test_the_time_of_a_wait_stands_still_while_a_rank_is_awaited(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WAITS)
    outcome = run(launcher(2, "--backend", "daemon", "--max-restarts", 1, tmp_path / "script.py"), 120)
    assert outcome.code == 0, outcome.errors
    assert "starting rank 1 again" in outcome.errors, outcome.errors
    assert "[rank 0] received 1.0" in outcome.output and "[rank 0] key" in outcome.output, outcome.output


@pytest.mark.parametrize(
    ("death", "restarts", "code"), [("os._exit(0)", 1, 0), ("os.kill(os.getpid(), signal.SIGKILL)", 0, 137)]
)
def test_nobody_waits_for_a_trainer_that_is_not_started_again(
    tmp_path: Path, death: str, restarts: int, code: int
) -> None:
    """One that ends well but without a goodbye, and one whose restarts are used up."""
    dies = f"    if rank == 1 and step == 5 and restarts == 0:\n        {death}\n"
    script = tmp_path / "script.py"
    script.write_text(TRAINING.replace("    optimizer.zero_grad()\n", dies + "    optimizer.zero_grad()\n"))
    flags = ("--backend", "daemon", "--max-restarts", max(restarts, 1), "--linger", 20)
    words = (script, "gradient_allreduce", 1, STEPS, *(() if restarts else ("1:3:step",)))
    if not restarts:  # the first death takes the only one
        script.write_text(script.read_text().replace("restarts == 0:", "restarts == 1:"))
    began = time.monotonic()
    outcome = run(launcher(2, *flags, *words), 300)
    assert outcome.code == code, outcome.errors
    assert "is gone, and nobody starts another one" in outcome.errors or "may attach anew" in outcome.errors
    assert time.monotonic() - began < 50, "the others have waited for the whole grace"


def test_an_algorithm_in_python_has_no_heir(tmp_path: Path) -> None:
    """What it remembers is nowhere but in its process: with another one it would go on without a word."""
    text = (
        "import os, signal, torch, pelton.torch_api as bagua\n"
        "from pelton.torch_api.algorithms import Algorithm, AlgorithmImpl\n"
        "from pelton.torch_api.bucket import BaguaBucket\n"
        "from pelton.torch_api.checkpoint import Snapshots\n"
        "class InPython(AlgorithmImpl):\n"
        "    def tensors_to_buckets(self, tensors, do_flatten):\n"
        "        return [BaguaBucket([tensor for group in tensors for tensor in group], 'all', do_flatten)]\n"
        "    def init_operations(self, bagua_ddp, bucket):\n"
        "        bucket.append_centralized_synchronous_op(average=True, group=self.process_group)\n"
        "class Named(Algorithm):\n"
        "    def reify(self, process_group):\n"
        "        return InPython(process_group)\n"
        "bagua.init_process_group()\n"
        "net = torch.nn.Linear(3, 2)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "net = net.with_bagua([optimizer], Named())\n"
        "snapshots = Snapshots(net, optimizer)\n"
        "done, _ = snapshots.restore()\n"
        "for step in (done + 1, done + 2):\n"
        "    net(torch.ones(1, 3)).sum().backward()\n"
        "    optimizer.step()\n"
        "    snapshots.keep(step)\n"
        "if done == 0:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "script.py").write_text(text)
    flags = ("--backend", "daemon", "--max-restarts", 1)
    outcome = run(launcher(1, *flags, tmp_path / "script.py"), 300)
    assert outcome.code == 0, outcome.errors
    assert "rank 0 cannot be started again alone: its daemon keeps no place" in outcome.errors, outcome.errors
    assert "starting all ranks again" in outcome.errors, outcome.errors


def _fake_daemon(tmp_path: Path, when_asked: str) -> str:
    """The path of a shell script in the place of `pelton-daemon`, which listens and serves nobody.

    Args:
      tmp_path: where it is written.
      when_asked: what it does where it is asked how it is (`--status`).
    """
    program = tmp_path / "daemon"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in\n*--status*) {when_asked} ;;\n'
        '*--no-heir*) ;;\n*) touch "$2"; exec sleep 600 ;;\nesac\n'
    )
    program.chmod(0o700)
    return str(program)


@pytest.mark.parametrize("awaits", [True, False])
def test_a_place_that_is_kept_for_one_trainer_is_given_up_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, awaits: bool
) -> None:
    says = json.dumps({"trainer_pid": 0, "awaits_heir": awaits})
    monkeypatch.setenv(PROGRAM_VARIABLE, _fake_daemon(tmp_path, f"echo '{says}'"))
    daemons = Daemons("a mark", tmp_path, trainer_grace_s=5)
    try:
        daemons.start(2, "127.0.0.1:1", os.environ)
        before = daemons.pids
        daemons.revive(2, "127.0.0.1:1", os.environ, 5)
        assert daemons.pids.isdisjoint(before) if awaits else daemons.pids == before
    finally:
        daemons.stop(5)


@pytest.mark.parametrize("flags", [(), ("--trainer-grace", 0)])
def test_a_rank_that_fails_before_it_attaches_costs_no_patience(tmp_path: Path, flags: tuple[object, ...]) -> None:
    """The other one's trainer waits for it and is ended. Its daemon does not see that, and would let rank 1's next
    trainer, which is there first, meet the dead one.
    """
    text = (
        "import os, sys, time, torch, pelton.torch_api as bagua\n"
        f"attached = {str(tmp_path / 'attached')!r}\n"
        "rank, count = os.environ['RANK'], os.environ['PELTON_RESTART_COUNT']\n"
        "if rank == '1' and count == '0':\n"
        "    while not os.path.exists(attached): time.sleep(0.05)\n"
        "    time.sleep(1)\n"
        "    sys.exit(3)\n"
        "if rank == '0' and count == '1': time.sleep(2)\n"
        "open(attached, 'w').close()\n"
        "bagua.init_process_group()\n"
        "tensor = torch.ones(1)\n"
        "bagua.allreduce_inplace(tensor, op=bagua.ReduceOp.SUM)\n"
        "print('sum', tensor.item())\n"
    )
    (tmp_path / "script.py").write_text(text)
    command = launcher(2, "--backend", "daemon", "--max-restarts", 1, "--linger", 0, *flags, tmp_path / "script.py")
    outcome = run(command, 120)
    assert outcome.code == 0, outcome.errors
    assert outcome.output.count("sum 2.0") == 2, outcome.output


@pytest.mark.parametrize("is_welcomed", [True, False])
def test_only_of_a_trainer_that_was_welcomed_a_daemon_sees_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_welcomed: bool
) -> None:
    asked = tmp_path / "asked"
    says = json.dumps({"trainer_pid": 4711, "trainer_is_welcomed": is_welcomed, "awaits_heir": False})
    monkeypatch.setenv(PROGRAM_VARIABLE, _fake_daemon(tmp_path, f"echo >> {asked}; echo '{says}'"))
    with contextlib.closing(PlaceQuestion("a socket", is_last=True)) as question:
        answer = None
        while answer is None and (not asked.exists() or len(asked.read_text()) < 3):
            answer = question.answer()
    assert answer is (None if is_welcomed else True)


def test_a_signal_ends_a_job_that_waits_for_its_daemons_to_begin_anew(tmp_path: Path) -> None:
    """The daemon is asked for the rank that has failed, and from then on it never sees a trainer's end."""
    asked = tmp_path / "asked"
    status = {"trainer_is_welcomed": True, "awaits_heir": False}
    gone, lives = (json.dumps({"trainer_pid": pid, **status}) for pid in (0, 4711))
    program = _fake_daemon(tmp_path, f"if [ -e {asked} ]; then echo '{lives}'; else touch {asked}; echo '{gone}'; fi")
    (tmp_path / "script.py").write_text("import sys\nsys.exit(3)\n")
    command = launcher(1, "--backend", "daemon", "--max-restarts", 1, tmp_path / "script.py")
    variables = {**environment(), PROGRAM_VARIABLE: program}
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "starting all ranks again" not in (line := process.stderr.readline()):
        assert line, "the job has ended"
    process.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - sent < 10, errors
    assert process.returncode == 3, errors


def test_ranks_are_served_while_a_daemon_is_asked(tmp_path: Path) -> None:
    """It does not answer before the other rank has had a signal, which only a launcher that goes on passes to it."""
    passed_on = tmp_path / "passed_on"
    said = json.dumps({"trainer_pid": 0, "awaits_heir": True})
    program = _fake_daemon(tmp_path, f"while [ ! -e {passed_on} ]; do sleep 0.05; done; echo '{said}'")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, pathlib, signal, time\n"
        f"passed_on = pathlib.Path({str(passed_on)!r})\n"
        "if os.environ['RANK'] == '1' and os.environ['PELTON_RESTART_COUNT'] == '0':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if os.environ['RANK'] == '0':\n"
        "    signal.signal(signal.SIGUSR1, lambda *_: passed_on.touch())\n"
        "    print('ready', flush=True)\n"
        "end = time.monotonic() + 40\n"
        "while not passed_on.exists() and time.monotonic() < end:\n"
        "    time.sleep(0.05)\n"
        "print('done', flush=True)\n"
    )
    command = launcher(2, "--backend", "daemon", "--max-restarts", 1, script)
    variables = {**environment(), PROGRAM_VARIABLE: program}
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "[rank 0] ready\n"
    assert "rank 1 (pid " in process.stderr.readline()  # its end is seen, and its daemon is asked
    process.send_signal(signal.SIGUSR1)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "starting rank 1 again, for the 1. of at most 1 times; the others wait for it" in errors
    assert sorted(output.splitlines()) == ["[rank 0] done", "[rank 1] done"]


def _job_with_daemons(tmp_path: Path, daemon: str, script: str, *flags: object) -> Outcome:
    """Two ranks with a `_fake_daemon`."""
    program = _fake_daemon(tmp_path, daemon)
    (tmp_path / "script.py").write_text(script)
    command = launcher(2, "--backend", "daemon", "--max-restarts", 1, *flags, tmp_path / "script.py")
    return run(command, 60, {PROGRAM_VARIABLE: program})


def test_the_first_death_is_the_cause_though_its_daemon_answers_last(tmp_path: Path) -> None:
    """Rank 1 is killed; rank 0 fails by that, and its daemon has answered before that of rank 1."""
    asked = tmp_path / "asked_of_0"
    no = json.dumps({"trainer_pid": 0, "awaits_heir": False})
    daemon = (
        f'case "$2" in */1) while [ ! -e {asked} ]; do sleep 0.05; done; sleep 0.5 ;;\n'
        f"*) touch {asked} ;; esac\n"
        f"echo '{no}'"
    )
    script = (
        "import os, signal, sys, time\n"
        "if os.environ['PELTON_RESTART_COUNT'] == '1': sys.exit()\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(0.5)\n"
        "sys.exit('a consequence')\n"
    )
    outcome = _job_with_daemons(tmp_path, daemon, script)
    assert "rank 1 cannot be started again alone: it has kept no snapshot" in outcome.errors
    assert "rank 0 cannot be started again" not in outcome.errors  # as the second it decides nothing
    assert "starting all ranks again" in outcome.errors


def test_a_place_that_is_kept_in_vain_is_said_to_be_so(tmp_path: Path) -> None:
    """Both ranks die, both daemons keep their places, and one restart is allowed."""
    keeps = json.dumps({"trainer_pid": 0, "awaits_heir": True})
    script = (
        "import os, signal, time\n"
        "if os.environ['PELTON_RESTART_COUNT'] == '0': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)\n"
    )
    outcome = _job_with_daemons(tmp_path, f"sleep 1; echo '{keeps}'", script, "--linger", 1)
    text = r"starting rank (\d) again, for the 1. of at most 1 times; the others wait for it"
    (started,) = re.findall(text, outcome.errors)
    other = 1 - int(started)
    assert f"rank {other} cannot be started again alone: the restarts are used up" in outcome.errors


def test_what_cannot_go_on_fails_as_often_as_it_may(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os\nprint('here', os.environ['PELTON_RESTART_COUNT'])\nos._exit(7)\n")
    outcome = run(launcher(1, "--max-restarts", 2, tmp_path / "script.py"), 60)
    assert outcome.code == 7
    assert [line.split()[-1] for line in outcome.output.splitlines()] == ["0", "1", "2"]
    assert outcome.errors.count("starting all ranks again") == 2
    assert outcome.errors.count("so that they begin where the script does") == 2


def test_a_rank_without_a_snapshot_is_not_started_alone_and_the_reason_is_said(tmp_path: Path) -> None:
    says = json.dumps({"trainer_pid": 0, "awaits_heir": False})
    program = _fake_daemon(tmp_path, f"echo '{says}'")
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nsys.exit(3 if os.environ['PELTON_RESTART_COUNT'] == '0' else 0)\n")
    command = launcher(1, "--backend", "daemon", "--max-restarts", 1, script)
    outcome = run(command, 60, {PROGRAM_VARIABLE: program})
    assert outcome.code == 0, outcome.errors
    assert "rank 0 cannot be started again alone: it has kept no snapshot (checkpoint.Snapshots)" in outcome.errors


def test_a_snapshot_of_another_model_is_refused(tmp_path: Path) -> None:
    text = (
        "import os, torch, pelton.torch_api as bagua\n"
        "from pelton.torch_api.checkpoint import Snapshots\n"
        "bagua.init_process_group()\n"
        "count = int(os.environ['PELTON_RESTART_COUNT'])\n"
        "snapshots = Snapshots(torch.nn.Linear(3, 2 + count * bagua.get_rank()))\n"
        "print(snapshots.restore(), flush=True)\n"
        "snapshots.keep(5, b'x')\n"
        "bagua.communication.barrier()\n"
        "os._exit(1)\n"
    )
    (tmp_path / "script.py").write_text(text)
    outcome = run(launcher(2, "--max-restarts", 1, tmp_path / "script.py"), 60)
    assert outcome.output.count("(0, b'')") == 2
    assert "they go on from the newest step that all of them have kept" in outcome.errors
    shapes = "bias is [2] of torch.float32 there and [3] of torch.float32 here"
    assert f"InvalidArgument: the snapshot of step 5 is of another model: {shapes}" in outcome.errors
    assert "rank 1 of the group: the snapshot of step 5 is of another model" in outcome.errors


def test_steps_that_no_two_ranks_share_are_said(tmp_path: Path) -> None:
    text = (
        "import os, torch, pelton.torch_api as bagua\n"
        "from pelton.torch_api.checkpoint import Snapshots\n"
        "bagua.init_process_group()\n"
        "snapshots = Snapshots(torch.nn.Linear(3, 2))\n"
        "snapshots.restore()\n"
        "for step in (1, 2, 3):\n"
        "    snapshots.keep(step + 10 * bagua.get_rank())\n"
        "bagua.communication.barrier()\n"
        "os._exit(1)\n"
    )
    (tmp_path / "script.py").write_text(text)
    outcome = run(launcher(2, "--max-restarts", 1, tmp_path / "script.py"), 60)
    assert "no step is held by all ranks (rank 0 steps [1, 2, 3], rank 1 steps [11, 12, 13])" in outcome.errors


def _read_mark(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split()[-1]


def _victims(mark: str) -> list[int]:
    """The ranks and the daemons of a job, but not what they have started."""
    found = []
    for pid in processes_of(mark):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if any(word.endswith((b"pelton-daemon", b"script.py")) for word in words):
            found.append(pid)
    return found


def test_soak_of_trainers_and_daemons_that_are_killed(tmp_path: Path) -> None:
    """A seed chooses who dies, and when; the weights are those of a run that nobody disturbed."""
    kills = int(os.environ.get("PELTON_SOAK_KILLS", "10"))
    seed = int(os.environ.get("PELTON_SOAK_SEED", time.time_ns() % 1_000_000))
    print(f"PELTON_SOAK_SEED={seed}")  # shown where it fails
    choice = random.Random(seed)
    steps = 70 * kills  # a start takes most of the time between two deaths
    limit_s = max(300, 60 * kills)
    script = tmp_path / "script.py"
    slow = '    may_die(step, "kept")\n    time.sleep(0.02)\n'  # so that there is training to be killed in
    script.write_text(
        "import os; print(os.environ['PELTON_LAUNCH_MARK'], flush=True)\n"
        + TRAINING.replace('    may_die(step, "kept")\n', slow)
    )
    words = (script, "gradient_allreduce", 1, steps)
    plain = tmp_path / "plain.py"
    plain.write_text(TRAINING)
    undisturbed = _digests(run(launcher(2, plain, *words[1:]), limit_s))
    command = launcher(2, "--backend", "daemon", "--max-restarts", 2 * kills, "--linger", 2, *words)
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    mark = _read_mark(process)
    killed = 0
    while killed < kills and process.poll() is None:
        time.sleep(choice.uniform(0.2, 3.0))
        victims = _victims(mark)
        if victims:
            os.kill(choice.choice(sorted(victims)), signal.SIGKILL)
            killed += 1
    output, errors = process.communicate(timeout=limit_s)
    assert killed == kills, f"seed {seed}\n{errors}"
    assert process.returncode == 0, f"seed {seed}\n{errors}"
    assert _digests(Outcome(0, output, errors)) == undisturbed, f"seed {seed}\n{output}"
    assert processes_of(mark) == []
    assert not os.path.exists(folder_of(mark))


def test_a_graph_by_hand_is_refused_when_the_job_comes_back_with_another_number_of_ranks(tmp_path: Path) -> None:
    """It trains on the number that it is of, and a graph by its name on both."""
    script = tmp_path / "script.py"
    script.write_text(GRAPH_BY_HAND)
    refused = "was given by hand for 2 ranks, and the group has 3; give one for 3 ranks, or name a graph"
    for ranks in (2, 3):
        outcome = run(launcher(ranks, "--backend", "daemon", script), 120)
        assert outcome.code == 0, outcome.errors
        lines = outcome.output.splitlines()
        assert len([line for line in lines if line.endswith("trained")]) == (4 if ranks == 2 else 3), lines
        assert len([line for line in lines if refused in line]) == (0 if ranks == 2 else 3), lines
