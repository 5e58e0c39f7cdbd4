"""`pelton run --max-restarts`: ranks and daemons that die, and training that goes on bit by bit; see docs/daemon.md."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
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
    torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 10)
)
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
    loss.backward()
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


def _train(folder: Path, backend: str, name: str, every: int, *words: object, restarts: int = 0) -> Outcome:
    script = folder / "script.py"
    script.write_text(TRAINING)
    flags = ("--backend", backend, "--max-restarts", restarts, "--linger", 2)
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
    # Both ranks go back to one step each time, and never to one before the last that both have kept.
    assert _beginnings(disturbed) == [0, 0, 4, 4, 8, 8, 8, 8], disturbed.output


def test_what_cannot_go_on_fails_as_often_as_it_may(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os\nprint('here', os.environ['PELTON_RESTART_COUNT'])\nos._exit(7)\n")
    outcome = run(launcher(1, "--max-restarts", 2, tmp_path / "script.py"), 60)
    assert outcome.code == 7
    assert [line.split()[-1] for line in outcome.output.splitlines()] == ["0", "1", "2"]
    assert outcome.errors.count("starting all ranks again") == 2


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
    assert "no step is held by all ranks (rank 0 steps [2, 3], rank 1 steps [12, 13])" in outcome.errors


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
    kills = int(os.environ.get("PELTON_SOAK_KILLS", "3"))
    seed = int(os.environ.get("PELTON_SOAK_SEED", time.time_ns() % 1_000_000))
    print(f"PELTON_SOAK_SEED={seed}")  # shown where it fails
    choice = random.Random(seed)
    steps = 110 * kills
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
