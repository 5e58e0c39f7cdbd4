"""A rank of the autotune benchmark: a net with buckets of each size, and one that is tuned, in turns.

    rank.py [--seconds S] [--case NAME]

The tuned one has 60 steps by itself first. Rank 0 prints a JSON line per net: the median milliseconds of a step by
variant, and the medians over the turns of two ratios: tuned to the best of the sweep, and to the size at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import pelton
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train_step"))

from models import CASES, Case

STEPS_PER_TURN = 4
TUNING_STEPS = 60
KIB = 1 << 10
SWEEP = [16 * KIB << shift for shift in range(0, 13, 2)]  # 16 KiB to 64 MiB
START, TUNED = "start", "tuned"


def _name(size_bytes: int) -> str:
    return f"{size_bytes // KIB} KiB" if size_bytes < KIB * KIB else f"{size_bytes // KIB // KIB} MiB"


class Variant:
    """A net under training. Threads: the rank's. Owns: it, and its times."""

    def __init__(self, case: Case, bucket_bytes: int | None) -> None:
        """Args:
        case: the net and its batch.
        bucket_bytes: of its buckets; None: the default.
        """
        torch.manual_seed(0)
        module = case.model()
        self.inputs, self.targets = case.batch(dist.get_rank())
        self.optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
        self.loss = nn.CrossEntropyLoss()
        before = os.environ.pop("BAGUA_DEFAULT_BUCKET_SIZE", None)
        if bucket_bytes is not None:
            os.environ["BAGUA_DEFAULT_BUCKET_SIZE"] = str(bucket_bytes)
        try:
            self.model = module.with_bagua([self.optimizer], GradientAllReduceAlgorithm())  # type: ignore[operator]
        finally:
            os.environ.pop("BAGUA_DEFAULT_BUCKET_SIZE", None)
            if before is not None:
                os.environ["BAGUA_DEFAULT_BUCKET_SIZE"] = before
        self.ms: list[float] = []

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()

    def take_turn(self) -> None:
        """The first step, which finds the caches full of another net's, does not count."""
        dist.barrier()
        self.step()
        began = time.perf_counter()
        for _ in range(STEPS_PER_TURN):
            self.step()
        self.ms.append((time.perf_counter() - began) / STEPS_PER_TURN * 1e3)


def _measure(case: Case, seconds: float) -> dict[str, object]:
    variants: dict[str, Variant] = {_name(size): Variant(case, size) for size in SWEEP}
    variants[START] = Variant(case, None)
    variants[TUNED] = tuned = Variant(case, None)
    pelton.autotune(tuned.model)
    for _ in range(TUNING_STEPS):
        tuned.step()
    if tuned.model.bagua_ddp.is_tuning:
        raise SystemExit(f"{case.name}: tuning goes on after {TUNING_STEPS} steps")
    for variant in variants.values():
        for _ in range(3):
            variant.step()
    end, began, turns = torch.tensor(0.0), time.perf_counter(), 0
    while end.item() < seconds:
        order = list(variants.values())
        for variant in order[turns % len(order) :] + order[: turns % len(order)]:
            variant.take_turn()
        turns += 1
        end.fill_(time.perf_counter() - began)
        dist.broadcast(end, 0)  # all ranks take as many turns
    medians = {name: statistics.median(variant.ms) for name, variant in variants.items()}
    best = min((_name(size) for size in SWEEP), key=lambda name: medians[name])
    return {
        "case": case.name,
        "turns": turns,
        "rounds": TUNING_STEPS,
        "ms": medians,
        "best": best,
        "tuned_to": _name(int(tuned.model.bagua_ddp.statistics()["bucket_size_bytes"])),
        "of_best": statistics.median(mine / other for mine, other in zip(tuned.ms, variants[best].ms)),
        "of_start": statistics.median(mine / other for mine, other in zip(tuned.ms, variants[START].ms)),
    }


def main() -> None:
    """Runs on every rank; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--case", default="")
    options = parser.parse_args()
    # All ranks are on this machine, also those of other namespaces: with more threads than cores, torch's spin
    # against each other, and a step takes up to six times as long as the one before.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ["WORLD_SIZE"])))
    dist.init_process_group("gloo")
    bagua.init_process_group()
    pelton.set_log_callback(lambda _, line: print(line, file=sys.stderr, flush=True) if "autotune" in line else None)
    for case in CASES:
        if options.case not in case.name:
            continue
        report = _measure(case, options.seconds)
        if dist.get_rank() == 0:
            print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
