"""Tensors of a GPU, for which a device of PyTorch stands in, with daemons: all of it stays in the trainers; see
docs/daemon.md."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType

import accelerator
import pytest
from spawn import HERE, Outcome, case_ids, check_outcome, environment, launcher, run, run_modules

# The cases of these pass as they do in process: some in every run, the others in tools/test --long.
_LONG = "PELTON_LONG" in os.environ
MODULES = ("cases.gpu", *(("cases.gpu_bluefog", "cases.gpu_neighbors", "cases.gpu_windows") if _LONG else ()))
LAGS_US = (0, 300) if _LONG else (0,)  # see test_gpu.py
CASES = sorted((module, name) for module in MODULES for size, name in case_ids(module) if size == 2)

# Each rank trains a net on its GPU. It prints what it ends with, bit by bit, and dies where it is told to.
TRAINING = """
import hashlib, os, signal, sys, accelerator, torch, pelton.torch_api as bagua
from pelton.torch_api.algorithms import bytegrad, gradient_allreduce
from pelton.torch_api.checkpoint import Snapshots
accelerator.load()
torch.set_num_threads(1)
name, steps, deaths = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
bagua.init_process_group()
rank, restarts = bagua.get_rank(), int(os.environ.get("PELTON_RESTART_COUNT", "0"))
device = torch.device(accelerator.NAME, bagua.get_local_rank())
torch.accelerator.set_device_index(device.index)

def may_die(step, place):
    if restarts < len(deaths) and deaths[restarts] == f"{rank}:{step}:{place}":
        os.kill(os.getpid(), signal.SIGKILL)

torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
algorithm = {
    "gradient_allreduce": gradient_allreduce.GradientAllReduceAlgorithm,
    "bytegrad": lambda: bytegrad.ByteGradAlgorithm(hierarchical=False),
    "one_bit": lambda: bytegrad.ByteGradAlgorithm(hierarchical=False, codec="one_bit"),
}[name]()
net = net.with_bagua([optimizer], algorithm)
snapshots = Snapshots(net, optimizer)
torch.manual_seed(10 + rank)
done, _ = snapshots.restore()
print(f"from {done}", flush=True)
for step in range(done + 1, steps + 1):
    inputs = torch.randn(4, 6).to(device)
    optimizer.zero_grad()
    net(inputs).square().mean().backward()
    may_die(step, "backward")
    optimizer.step()
    snapshots.keep(step)
    may_die(step, "kept")
digest = hashlib.sha256(b"".join(t.cpu().numpy().tobytes() for t in net.state_dict().values()))
print(f"rank {rank} ended with {digest.hexdigest()}", flush=True)
bagua.communication.barrier()
"""
STEPS = 6
# What the last one remembers, by way of the host, is in the snapshot, too.
ALGORITHMS = ("gradient_allreduce", "bytegrad", "one_bit") if _LONG else ("gradient_allreduce",)


@functools.cache
def _outcome(lag_us: int) -> Outcome:
    limit_s = max(600, 60 * len(MODULES))
    return run_modules(2, MODULES, limit_s, accelerator.environment(lag_us), ("--backend", "daemon"))


@pytest.mark.parametrize("lag_us", LAGS_US)
@pytest.mark.parametrize(("module", "name"), CASES)
def test_cases_pass_with_a_daemon(module: str, name: str, lag_us: int) -> None:
    check_outcome(_outcome(lag_us), module, 2, name)


def _train(folder: Path, name: str, *deaths: str, flags: tuple[object, ...] = ()) -> Outcome:
    script = folder / "script.py"
    script.write_text(TRAINING)
    return run(launcher(2, *flags, script, name, STEPS, *deaths), 300, accelerator.environment())


def _digests(outcome: Outcome) -> set[str]:
    assert outcome.code == 0, outcome.errors
    return set(re.findall(r"rank \d ended with (\w+)", outcome.output))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_killed_trainers_end_with_the_bits_of_in_process(tmp_path: Path, name: str) -> None:
    """Nobody waits for an heir, and no snapshot has what a step that failed on the GPU has left there."""
    undisturbed = _digests(_train(tmp_path, name))
    assert len(undisturbed) == 1
    flags = ("--backend", "daemon", "--max-restarts", 2, "--trainer-grace", 120, "--linger", 2)
    disturbed = _train(tmp_path, name, "1:3:kept", "0:4:backward", flags=flags)
    assert _digests(disturbed) == undisturbed, disturbed.output
    assert re.findall(r"from (\d)", disturbed.output) == ["0", "0", "3", "3", "3", "3"], disturbed.output
    assert disturbed.errors.count("starting all ranks again") == 2, disturbed.errors
    assert re.search(r"rank 1's trainer \(pid \d+\) is gone; its pelton-daemon lives on", disturbed.errors)


def _gpu_check() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(HERE.parents[1] / "tools" / "gpu_check"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_gpu_check_times_a_step_with_daemons(capfd: pytest.CaptureFixture[str]) -> None:
    """Of what a GPU is asked in turns with in process, the half with daemons."""
    step = ["--width", "16", "--batch", "4", "--turns", "1", "--steps", "2", "--module", "accelerator"]
    medians = _gpu_check().step_times(2, "daemon", step, environment(accelerator.environment()))
    assert medians is not None, capfd.readouterr()
    assert sorted(medians) == ["alone", "bytegrad", "gradient_allreduce"]
    assert min(medians.values()) > 0
