"""Milliseconds of one optimizer step, in turns: those of the Adam family and PyTorch's own, without communication.

    tools/bench optimizer [--turns N] [--case NAME...]

One thread; its processor time, so that neighbours count only by what they take of the caches; medians of the turns.
The last side is the step of a wrapped model, in a world of one rank: weights lie in the order of the buckets as their
gradients do, so that a step is one elementwise pass over each bucket's memory.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable

import pelton.torch_api as bagua
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
IN_BUCKETS = "Adam, fuse_optimizer in a wrapped model's buckets"


def _in_buckets(case: Case) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A wrapped model after some steps, when weights and gradients both lie flat; and its optimizer."""
    torch.manual_seed(0)
    model = case.model()
    optimizer = fuse_optimizer(torch.optim.Adam(model.parameters()))
    model = model.with_bagua([optimizer], "gradient_allreduce")
    inputs, targets = case.batch(0)
    for _ in range(SHORT):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.fuse_step()
    parameters = dict(model.named_parameters())
    for gradients, slots in model.bagua_ddp.flat_buckets():
        begins = {parameters[name].data_ptr() - begin * gradients.element_size() for name, begin in slots}
        if len(begins) != 1:
            raise RuntimeError(f"{case.name}: the weights of a bucket lie in {len(begins)} places, not in one")
    if optimizer._bagua_fused_count != SHORT:
        raise RuntimeError(f"{case.name}: {optimizer._bagua_fused_count} of {SHORT} steps were fused")
    return model, optimizer


def _optimizer(case: Case, make: Make) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    parameters = list(case.model().parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return make(parameters)


def _measure(case: Case, turns: int) -> dict[str, float]:
    """Units: milliseconds a step, by side."""
    optimizers = {name: _optimizer(case, make) for name, make in SIDES.items()}
    model, optimizers[IN_BUCKETS] = _in_buckets(case)  # which lives as long as the buckets are needed
    taken: dict[str, list[float]] = {name: [] for name in optimizers}
    for turn in range(turns + 1):
        for name, optimizer in optimizers.items():
            step = getattr(optimizer, "fuse_step", optimizer.step)
            step()  # brings its tensors into the caches, as far as they fit
            began = time.thread_time()
            for _ in range(STEPS_PER_TURN):
                step()
            if turn > 0:  # the first stages are over
                taken[name].append((time.thread_time() - began) / STEPS_PER_TURN * 1e3)
    del model
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--case", nargs="+", default=["conv net", "transformer", "mlp 25 MB"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    bagua.init_process_group()
    found = {case.name: _measure(case, options.turns) for case in CASES if case.name in options.case}
    print("| ms a step | " + " | ".join(found) + " |\n" + "| --- " * (len(found) + 1) + "|")
    for side in [*SIDES, IN_BUCKETS]:
        print(f"| {side} | " + " | ".join(f"{by_side[side]:.2f}" for by_side in found.values()) + " |")


if __name__ == "__main__":
    main()
