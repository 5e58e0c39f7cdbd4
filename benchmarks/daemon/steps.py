"""What a daemon, and a snapshot after every step, add to a training step; see docs/daemon.md.

    tools/bench daemon steps [--turns N] [--steps N] [--case NAME] [--ranks N]
    tools/bench daemon steps --only-snapshots --ranks 1

Without RANK it starts the jobs, in turns in process and with daemons, and prints medians of the turns' medians and of
the paired turns' ratios. With RANK it is a rank of such a job. A snapshot's row compares steps with and without one,
in turns of one job.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pelton.torch_api as bagua
import torch
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from pelton.torch_api.checkpoint import Snapshots
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "train_step"))
from models import CASES  # after the folder is on the path

MLPS = {"mlp 25 MB": (1024, 6), "mlp 134 MB": (2048, 8)}
OPTIMIZERS = {"SGD": lambda p: torch.optim.SGD(p, lr=1e-4), "Adam": lambda p: torch.optim.Adam(p, lr=1e-5)}
WARM_UP = 4
Times = dict[str, list[float]]
Step = Callable[[], None]


def _mlp(width: int, depth: int) -> nn.Module:
    return nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())))


def _timed(step: Step, steps: int) -> float:
    """The median of some steps, all ranks beginning together. Units: milliseconds."""
    bagua.communication.barrier()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def _wrapped(model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
    return model.with_bagua([optimizer], GradientAllReduceAlgorithm())  # type: ignore[operator,no-any-return]


def _step_of(net: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(net(inputs), targets).backward()
        optimizer.step()

    return step


NUMBERS = itertools.count(1)  # over all models, because a rank's snapshots only go on


def _kept(step: Step, snapshots: Snapshots) -> Step:
    """A step and its snapshot."""

    def both() -> None:
        step()
        snapshots.keep(next(NUMBERS))

    return both


def _nets(options: argparse.Namespace) -> Times:
    """A step of each net of benchmarks/train_step, no snapshots."""
    found = {}
    for case in CASES:
        if options.case not in case.name:
            continue
        torch.manual_seed(0)
        model = case.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        inputs, targets = case.batch(bagua.get_rank())
        step = _step_of(_wrapped(model, optimizer), optimizer, inputs, targets)
        _timed(step, WARM_UP)
        found[case.name] = [_timed(step, options.steps)]
    return found


def _snapshots(options: argparse.Namespace) -> Times:
    """Two figures a turn: without a snapshot, and with one after every step."""
    found: Times = {}
    for name, (width, depth) in MLPS.items():
        for kind, make in OPTIMIZERS.items():
            torch.manual_seed(0)
            model = _mlp(width, depth)
            optimizer = make(model.parameters())
            net = _wrapped(model, optimizer)
            snapshots = Snapshots(net, optimizer)
            plain = _step_of(net, optimizer, torch.randn(32, width), torch.randint(10, (32,)))
            kept = _kept(plain, snapshots)
            _timed(kept, WARM_UP)
            times = [_timed(step, options.steps) for _ in range(options.turns) for step in (plain, kept)]
            found[f"{name}, {kind}"] = times
    return found


def _rank(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    bagua.init_process_group()
    found = _snapshots(options) if options.part == "snapshots" else _nets(options)
    if bagua.get_rank() == 0:
        Path(options.result).write_text(json.dumps(found))
    bagua.communication.barrier()


def _job(options: argparse.Namespace, backend: str, part: str) -> Times:
    result = f"{options.folder}/{backend}.json"
    flags = ["--backend", backend, *(["--max-restarts", "1"] if part == "snapshots" else [])]
    words = ["--part", part, "--result", result, "--steps", str(options.steps), "--turns", str(options.turns)]
    command = [
        sys.executable,
        "-m",
        "pelton_run",
        "-np",
        str(options.ranks),
        *flags,
        __file__,
        *words,
        "--case",
        options.case,
    ]
    subprocess.run(command, check=True, timeout=600)
    found: Times = json.loads(Path(result).read_text())
    return found


def _print_row(name: str, before: list[float], after: list[float]) -> None:
    ratio = statistics.median(b / a for a, b in zip(before, after))
    print(f"{name:28}{statistics.median(before):12.2f}{statistics.median(after):12.2f}{ratio:10.3f}", flush=True)


def _start(options: argparse.Namespace) -> None:
    if not options.only_snapshots:
        _start_nets(options)
    print(f"{'with daemons':28}{'none':>12}{'snapshots':>12}{'ratio':>10}")
    for name, times in _job(options, "daemon", "snapshots").items():
        _print_row(name, times[0::2], times[1::2])
    print(f"1-minute load at the end: {os.getloadavg()[0]:.1f}")


def _start_nets(options: argparse.Namespace) -> None:
    print(f"{'ms per step, medians':28}{'in process':>12}{'daemon':>12}{'ratio':>10}")
    turns = [(_job(options, "process", "nets"), _job(options, "daemon", "nets")) for _ in range(options.turns)]
    for name in turns[0][0]:
        _print_row(name, [here[name][0] for here, _ in turns], [there[name][0] for _, there in turns])


def main() -> None:
    """Starts the jobs, or is a rank of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of each turn")
    parser.add_argument("--case", default="", help="only the nets whose name contains this")
    parser.add_argument("--ranks", type=int, default=2, help="of each job; 1 leaves a core of two free")
    parser.add_argument("--only-snapshots", action="store_true", help="the second table alone")
    parser.add_argument("--part", choices=("nets", "snapshots"), default="nets", help="of a rank")
    parser.add_argument("--result", help="where rank 0 writes its figures")
    options = parser.parse_args()
    if "RANK" in os.environ:
        _rank(options)
        return
    with tempfile.TemporaryDirectory() as options.folder:
        _start(options)


if __name__ == "__main__":
    main()
