"""Training steps per second: no communication, PyTorch DDP on gloo, and Pelton, in turns in one run.

    tools/bench train_step [--seconds S] [--case NAME] [--json FILE]

Each rank trains every variant of a model for a short turn, then the next variant, round after round, so that a
busy machine slows all of them alike. Printed are medians of the turns, and the share of the time that DDP adds to
a step without communication that is left under Pelton. "shared" columns let gradients be born in shared memory
(`pelton.gradients_in_shared_memory`): under none and DDP as well, so that the allocator's own gain is not counted
as communication's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable

import pelton
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from models import CASES, Case
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS_PER_TURN = 5
Step = Callable[[], None]


def _step_of(model: nn.Module, optimizer: torch.optim.Optimizer, case: Case, *, shared: bool) -> Step:
    inputs, targets = case.batch(dist.get_rank())
    loss_function = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        scope = pelton.gradients_in_shared_memory() if shared else contextlib.nullcontext()
        with scope:
            loss_function(model(inputs), targets).backward()
        optimizer.step()

    return step


def _variant(case: Case, kind: str) -> Step:
    torch.manual_seed(0)
    model = case.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    shared = kind.endswith(" shared")
    if kind.startswith("ddp"):
        wrapped: nn.Module = DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif kind.startswith("pelton"):
        scope = pelton.gradients_in_shared_memory() if shared else contextlib.nullcontext()
        with scope:  # the buckets are planned for it
            wrapped = model.with_bagua([optimizer], GradientAllReduceAlgorithm())  # type: ignore[operator]
    else:
        wrapped = model
    return _step_of(wrapped, optimizer, case, shared=shared)


KINDS = ("none", "ddp", "pelton", "none shared", "ddp shared", "pelton shared")


def _measure(case: Case, seconds: float) -> dict[str, float]:
    """Median step time of each variant. Units: milliseconds."""
    steps = {kind: _variant(case, kind) for kind in KINDS}
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for step in steps.values():
        for _ in range(3):  # warm-up: buckets are re-planned after the first round
            step()
    end = torch.tensor(0.0)
    began = time.perf_counter()
    while True:
        for kind, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(STEPS_PER_TURN):
                step()
            times[kind].append((time.perf_counter() - start) / STEPS_PER_TURN * 1e3)
        end.fill_(time.perf_counter() - began)
        dist.broadcast(end, 0)  # all ranks take as many turns
        if end.item() > seconds:
            break
    result = {kind: statistics.median(values) for kind, values in times.items()}
    result["turns"] = len(times["none"])
    return result


def _left(result: dict[str, float], none: str, ddp: str, ours: str) -> float:
    return (result[ours] - result[none]) / (result[ddp] - result[none])


def _print_table(results: dict[str, dict[str, float]]) -> None:
    print(f"{'ms per step, median':20}" + "".join(f"{kind:>14}" for kind in KINDS) + f"{'left':>8}{'shared':>8}")
    for name, result in results.items():
        row = "".join(f"{result[kind]:14.2f}" for kind in KINDS)
        left = _left(result, "none", "ddp", "pelton")
        shared = _left(result, "none shared", "ddp shared", "pelton shared")
        print(f"{name:20}{row}{left:8.0%}{shared:8.0%}")
    print("left: (pelton - none) / (ddp - none); shared: the same with gradients born in shared memory everywhere")


def main() -> None:
    """Runs on every rank under `pelton run`; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each model")
    parser.add_argument("--case", help="only the model whose name contains this")
    parser.add_argument("--json", help="where rank 0 writes the figures")
    options = parser.parse_args()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ["WORLD_SIZE"])))
    dist.init_process_group("gloo")
    bagua.init_process_group()
    results = {}
    for case in CASES:
        if options.case and options.case not in case.name:
            continue
        if dist.get_rank() == 0:
            print(f"measuring {case.name} for {options.seconds:.0f} s ...", flush=True)
        results[case.name] = _measure(case, options.seconds)
    if dist.get_rank() == 0:
        _print_table(results)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(results, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
