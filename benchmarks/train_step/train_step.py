"""Training steps per second: no communication, PyTorch DDP on gloo, and Pelton, in turns in one run.

    tools/bench train_step [--optimizers] [--seconds S] [--case NAME] [--json FILE]

Each rank trains every variant of a model for a short turn, then the next variant, round after round, so that a
busy machine slows all of them alike. Printed are medians of the turns, and the share of the time that DDP adds to
a step without communication that is left under Pelton: "pelton" as it is by default, "copied" with gradients that are
not born in shared memory. The "shared" columns let them be born there under none and DDP as well
(`pelton.gradients_in_shared_memory`), so that the allocator's own gain is not counted as communication's.

With --optimizers, pelton.bluefog's optimizers take the place of Pelton's gradient allreduce: adapt-with-combine
(awc), adapt-then-combine (atc) and win-put, each as it is by default, and atc with steps_in_backward (atc early).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator

import pelton
import pelton.bluefog.torch as bf
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from models import CASES, Case
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS_PER_TURN = 5
Step = Callable[[], None]


@contextlib.contextmanager
def _gradients_as(kind: str) -> Iterator[None]:
    """Where a variant's gradients are born; also for wrapping, because the buckets are planned for it."""
    if kind.endswith(" shared"):
        with pelton.gradients_in_shared_memory():
            yield
        return
    pelton.set_gradient_allocator(False if kind.endswith(" copied") else None)
    yield
    pelton.set_gradient_allocator(None)


def _step_of(model: nn.Module, optimizer: torch.optim.Optimizer, case: Case, kind: str) -> Step:
    inputs, targets = case.batch(dist.get_rank())
    loss_function = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with _gradients_as(kind):
            loss_function(model(inputs), targets).backward()
        optimizer.step()

    return step


def _early(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    made = bf.DistributedAdaptThenCombineOptimizer(optimizer, model)
    made.steps_in_backward = True
    return made


OPTIMIZERS: dict[str, Callable[[torch.optim.Optimizer, nn.Module], torch.optim.Optimizer]] = {
    "awc": bf.DistributedAdaptWithCombineOptimizer,
    "atc": bf.DistributedAdaptThenCombineOptimizer,
    "atc early": _early,
    "win put": bf.DistributedWinPutOptimizer,
}


def _variant(case: Case, kind: str) -> Step:
    torch.manual_seed(0)
    model = case.model()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if kind in OPTIMIZERS:
        return _step_of(model, OPTIMIZERS[kind](optimizer, model), case, kind)
    if kind.startswith("ddp"):
        wrapped: nn.Module = DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif kind.startswith("pelton"):
        with _gradients_as(kind):
            wrapped = model.with_bagua([optimizer], GradientAllReduceAlgorithm())  # type: ignore[operator]
    else:
        wrapped = model
    return _step_of(wrapped, optimizer, case, kind)


KINDS = ("none", "ddp", "pelton", "pelton copied", "none shared", "ddp shared")


def _measure(case: Case, kinds: tuple[str, ...], seconds: float) -> dict[str, float]:
    """Median step time of each variant. Units: milliseconds."""
    steps = {kind: _variant(case, kind) for kind in kinds}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
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
    if "win put" in kinds:
        bf.win_free()  # the next model's tensors have the same names
    return result


def _left(result: dict[str, float], none: str, ddp: str, ours: str) -> float:
    return (result[ours] - result[none]) / (result[ddp] - result[none])


def _print_table(results: dict[str, dict[str, float]]) -> None:
    left = "".join(f"{name:>8}" for name in ("left", "copied", "shared"))
    print(f"{'ms per step, median':20}" + "".join(f"{kind:>14}" for kind in KINDS) + left)
    for name, result in results.items():
        row = "".join(f"{result[kind]:14.2f}" for kind in KINDS)
        left = _left(result, "none", "ddp", "pelton")
        copied = _left(result, "none", "ddp", "pelton copied")
        shared = _left(result, "none shared", "ddp shared", "pelton")
        print(f"{name:20}{row}{left:8.0%}{copied:8.0%}{shared:8.0%}")
    print("left: (pelton - none) / (ddp - none); copied: the same where gradients are copied into buckets")
    print("shared: the same beside none and DDP whose gradients are born in shared memory, too")


def _print_optimizers(results: dict[str, dict[str, float]]) -> None:
    left = "".join(f"{kind + ' left':>16}" for kind in OPTIMIZERS)
    kinds = ("none", "ddp", *OPTIMIZERS)
    print(f"{'ms per step, median':20}" + "".join(f"{kind:>10}" for kind in kinds) + left)
    for name, result in results.items():
        row = "".join(f"{result[kind]:10.2f}" for kind in kinds)
        print(f"{name:20}{row}" + "".join(f"{_left(result, 'none', 'ddp', kind):16.0%}" for kind in OPTIMIZERS))
    print("left: (the optimizer - none) / (ddp - none)")


def main() -> None:
    """Runs on every rank under `pelton run`; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each model")
    parser.add_argument("--case", help="only the model whose name contains this")
    parser.add_argument("--optimizers", action="store_true", help="pelton.bluefog's optimizers")
    parser.add_argument("--json", help="where rank 0 writes the figures")
    options = parser.parse_args()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ["WORLD_SIZE"])))
    dist.init_process_group("gloo")
    bagua.init_process_group()
    if options.optimizers:
        bf.init()
    kinds = ("none", "ddp", *OPTIMIZERS) if options.optimizers else KINDS
    results = {}
    for case in CASES:
        if options.case and options.case not in case.name:
            continue
        if dist.get_rank() == 0:
            print(f"measuring {case.name} for {options.seconds:.0f} s ...", flush=True)
        results[case.name] = _measure(case, kinds, options.seconds)
    if dist.get_rank() == 0:
        (_print_optimizers if options.optimizers else _print_table)(results)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(results, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
