"""Milliseconds of one optimizer step, in turns: those of the Adam family and PyTorch's own, without communication.

    tools/bench optimizer [--turns N] [--case NAME...]

One thread; its processor time, so that neighbours count only by what they take of the caches; medians of the turns.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable

import torch
from pelton.torch_api.algorithms.one_bit_adam import OneBitAdamOptimizer
from pelton.torch_api.algorithms.q_adam import QAdamOptimizer
from pelton.torch_api.algorithms.zero_one_adam import ZeroOneAdamOptimizer
from pelton.torch_api.contrib import fuse_optimizer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train_step"))

from models import CASES, Case

STEPS_PER_TURN = 3
LONG, SHORT = 10**6, 2  # warm-ups, in steps
Make = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]

SIDES: dict[str, Make] = {
    "Adam": torch.optim.Adam,
    "Adam, foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, fused=True),
    "Adam, fuse_optimizer": lambda p: fuse_optimizer(torch.optim.Adam(p)),
    "QAdam, warm-up": lambda p: QAdamOptimizer(p, warmup_steps=LONG),
    "QAdam": lambda p: QAdamOptimizer(p, warmup_steps=SHORT),
    "1-bit Adam, warm-up": lambda p: OneBitAdamOptimizer(p, warmup_steps=LONG),
    "1-bit Adam": lambda p: OneBitAdamOptimizer(p, warmup_steps=SHORT),
    "0/1 Adam, exchanges": lambda p: ZeroOneAdamOptimizer(p, variance_freeze_step=SHORT, max_local_steps=1),
    "0/1 Adam, alone": lambda p: ZeroOneAdamOptimizer(
        p, variance_freeze_step=SHORT, doubling_steps=1, max_local_steps=LONG
    ),
}


def _optimizer(case: Case, make: Make) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    parameters = list(case.model().parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return make(parameters)


def _measure(case: Case, turns: int) -> dict[str, float]:
    """Units: milliseconds a step, by side."""
    optimizers = {name: _optimizer(case, make) for name, make in SIDES.items()}
    taken: dict[str, list[float]] = {name: [] for name in SIDES}
    for turn in range(turns + 1):
        for name, optimizer in optimizers.items():
            step = getattr(optimizer, "fuse_step", optimizer.step)
            step()  # brings its tensors into the caches, as far as they fit
            began = time.thread_time()
            for _ in range(STEPS_PER_TURN):
                step()
            if turn > 0:  # the first stages are over
                taken[name].append((time.thread_time() - began) / STEPS_PER_TURN * 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--case", nargs="+", default=["conv net", "transformer", "mlp 25 MB"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {case.name: _measure(case, options.turns) for case in CASES if case.name in options.case}
    print("| ms a step | " + " | ".join(found) + " |\n" + "| --- " * (len(found) + 1) + "|")
    for side in SIDES:
        print(f"| {side} | " + " | ".join(f"{by_side[side]:.2f}" for by_side in found.values()) + " |")


if __name__ == "__main__":
    main()
