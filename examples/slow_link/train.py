"""A rank of the comparison on a slow link: trains one net on handwritten digits, in each way from the same beginning.

    train.py [--epochs N] [--ways NAME...]

Rank 0 prints a JSON line per way: milliseconds of a step (the mean, without the first epoch), bytes that this rank
sends per step, and the accuracy on data that nobody trains on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.torch_api.algorithms import Algorithm
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from digits import accuracy, batches

WIDTH = 1024


@dataclass(frozen=True)
class Way:
    """How the ranks train one model. Threads: a value. Owns: its fields."""

    title: str
    algorithm: str
    options: dict[str, Any] = field(default_factory=dict)


WAYS = {
    "allreduce": Way("allreduce of every gradient, as DDP", "gradient_allreduce"),
    "bytes": Way("gradients in bytes (bytegrad)", "bytegrad", {"hierarchical": False}),
    "bits": Way("gradients in bits (bytegrad, one_bit)", "bytegrad", {"hierarchical": False, "codec": "one_bit"}),
    "low rank": Way("gradients as factors of rank 4 (power_sgd)", "power_sgd", {"rank": 4, "start_round": 1}),
    "local steps": Way("weights each 8 steps (local_sgd)", "local_sgd", {"interval": 8}),
    "local steps in 4 bits": Way(
        "the same in 4 bits", "local_sgd", {"interval": 8, "hierarchical": False, "codec": "block_int4"}
    ),
}


def make_model() -> nn.Module:
    """1.1 million parameters, 4.5 MB: the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def train(way: Way, epochs: int) -> dict[str, Any]:
    """Figures of one way."""
    rank, ranks = bagua.get_rank(), bagua.get_world_size()
    model: Any = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    model = model.with_bagua([optimizer], Algorithm.init(way.algorithm, **way.options))
    seconds = []
    for images, digits in batches(rank, ranks, epochs):
        began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), digits).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    sent = model.bagua_ddp.statistics()["sent_bytes"] / len(seconds)
    model.bagua_ddp.consolidate()
    reached = accuracy(model)
    model.bagua_ddp.detach()
    timed = seconds[len(seconds) // epochs :] or seconds
    return {
        "title": way.title,
        "ms": statistics.fmean(timed) * 1e3,
        "sent_bytes": sent,
        "accuracy": reached,
    }


def main() -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bagua.init_process_group()
    for name in options.ways:
        figures = train(WAYS[name], options.epochs)
        if bagua.get_rank() == 0:
            print(json.dumps({"way": name, **figures}), flush=True)
    bagua.destroy_process_group()


if __name__ == "__main__":
    main()
