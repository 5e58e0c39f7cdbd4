"""A rank of the training benchmark: trains the same net under each variant, in turns, on the same batches.

    train.py --variants NAME... [--steps N] [--turn N]

Rank 0 prints a JSON line per variant: milliseconds per step by turn, of the clock and of the rank's processor time
(all its threads), first and final loss (mean over ranks and the last turn), and the bytes that this rank sent per
step (Pelton's own count; None for DDP). Each turn begins with another variant, so that none always follows the same.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator

import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train_step"))

from models import CASES as ALL_CASES
from models import Case
from variants import VARIANTS, Variant, make

CASES = {case.name: case for case in ALL_CASES if case.name != "transformer"}  # whose inputs are no directions
CLASSES = 10
RATE = 0.01


def _model(case: Case) -> nn.Module:
    """The case's, as it learns: PyTorch's own beginning lets a signal die out in a deep net without normalisation."""
    model = case.model()
    layers = [layer for layer in model.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.normal_(layers[-1].weight, std=0.02)
    return model


def _batches(case: Case, rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless, of the case's shape; each class is a direction in the input, buried in noise."""
    inputs, classes = case.batch(rank)
    directions = torch.randn(CLASSES, *inputs.shape[1:], generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(100 + rank)
    while True:
        labels = torch.randint(CLASSES, classes.shape, generator=generator)
        yield directions[labels] * 0.3 + torch.randn(inputs.shape, generator=generator), labels


class Run:
    """One variant's training. Threads: the rank's. Owns: its model and figures."""

    def __init__(self, variant: Variant, case: Case) -> None:
        """Args:
        variant: what keeps the ranks together.
        case: what they train.
        """
        self.variant = variant
        self.model, self.optimizer = make(variant, lambda: _model(case), RATE)
        self.batches = _batches(case, dist.get_rank())
        self._average(False)
        self.losses: list[float] = []
        self.ms: list[float] = []
        self.cpu_ms: list[float] = []

    def take_turn(self, steps: int) -> None:
        """Trains some steps and times them."""
        self._average(True)
        dist.barrier()
        began, cpu_began = time.perf_counter(), time.process_time()
        for _ in range(steps):
            inputs, labels = next(self.batches)
            self.optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(self.model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.losses.append(loss.item())
        self.ms.append((time.perf_counter() - began) / steps * 1e3)
        self.cpu_ms.append((time.process_time() - cpu_began) / steps * 1e3)
        self._average(False)

    def _average(self, is_on: bool) -> None:
        """What averages in the background must not do so in another's turn."""
        algorithm = getattr(self.model, "bagua_algorithm", None)
        if hasattr(algorithm, "abort"):
            (algorithm.resume if is_on else algorithm.abort)(self.model)

    def report(self, turn: int) -> dict[str, object]:
        """The figures, the same on all ranks but for the bytes."""
        ends = torch.tensor([self.losses[0], statistics.fmean(self.losses[-turn:])])
        dist.all_reduce(ends)
        ends /= dist.get_world_size()
        inner = getattr(self.model, "bagua_ddp", None)
        sent = inner.statistics()["sent_bytes"] / len(self.losses) if inner is not None else None
        return {
            "variant": self.variant.name,
            "peer": self.variant.peer,
            "ms": self.ms[1:],
            "cpu_ms": self.cpu_ms[1:],
            "first_loss": ends[0].item(),
            "final_loss": ends[1].item(),
            "sent_bytes": sent,
        }


def main() -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="+", default=[variant.name for variant in VARIANTS])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turn", type=int, default=5, help="steps of a variant before it is the next one's turn")
    parser.add_argument("--case", default="mlp 25 MB", choices=list(CASES))
    options = parser.parse_args()
    known = [variant.name for variant in VARIANTS]
    unknown = [name for name in options.variants if name not in known]
    if unknown:
        parser.error(f"--variants: no {', '.join(unknown)}; there are {', '.join(known)}")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bagua.init_process_group()
    runs = [Run(variant, CASES[options.case]) for variant in VARIANTS if variant.name in options.variants]
    for turn in range(options.steps // options.turn):
        first = turn % len(runs)
        for run in runs[first:] + runs[:first]:
            run.take_turn(options.turn)
        if dist.get_rank() == 0:
            print(json.dumps({"steps": (turn + 1) * options.turn}), flush=True)
    for run in runs:
        report = run.report(options.turn)
        if dist.get_rank() == 0:
            print(json.dumps(report), flush=True)
    bagua.destroy_process_group()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
