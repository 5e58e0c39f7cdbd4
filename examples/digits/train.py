"""One rank of the demonstration: trains a small convolutional net on handwritten digits.

    pelton run -np 4 examples/digits/train.py --kind pelton --out FOLDER

The three kinds differ in `wrap` alone. Progress goes to standard output as JSON lines, results to FOLDER/rank<N>.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 20
GLOBAL_BATCH = 64
WARM_UP_STEPS = 5  # not timed: buckets are planned and connections made

Wait = Callable[[], float]
"""Seconds that training has waited for communication since the start."""


class ConvNet(nn.Module):
    """Two convolutions and two linear layers over 8 x 8 pixels; 137,000 parameters."""

    def __init__(self) -> None:
        """Draws the weights from torch's generator."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 256),
            nn.ReLU(),
            nn.Linear(256, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the ten digits. Shape: images [n, 1, 8, 8], scores [n, 10]."""
        scores: torch.Tensor = self.layers(images)
        return scores


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and digits to train on and to test on; the same split on every rank and in every run."""
    digits = load_digits()
    images = digits.images.astype(numpy.float32)[:, None] / 16
    parts = train_test_split(images, digits.target, test_size=0.2, random_state=SEED, stratify=digits.target)
    train_images, test_images, train_digits, test_digits = (torch.from_numpy(part) for part in parts)
    return train_images, train_digits, test_images, test_digits


def wrap(kind: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Wait]:
    """Makes the ranks train one model; returns it and what says how long training waited for that."""
    if kind == "pelton":
        import pelton.torch_api as bagua
        from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm

        bagua.init_process_group()
        wrapped = model.with_bagua([optimizer], GradientAllReduceAlgorithm())  # type: ignore[operator]
        return wrapped, lambda: wrapped.bagua_ddp.statistics()["wait_seconds"]
    if kind == "ddp":
        torch.distributed.init_process_group("gloo")
        parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        parallel._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
        return parallel, _DdpWait(parallel)
    return model, lambda: 0.0


class _DdpWait:
    """What DDP itself measures in each backward pass, summed up.

    Waiting is the part of its communication that lies after the last gradient was computed: the time of communication
    less the time in which it overlapped with computation. Pelton counts the same: how long the end of the backward
    pass was blocked.
    """

    def __init__(self, model: nn.parallel.DistributedDataParallel) -> None:
        self._model = model
        self._seconds = 0.0

    def __call__(self) -> float:
        # Without times before the second pass.
        figures = self._model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        exposed = figures.get("backward_comm_time", 0) - figures.get("backward_compute_comm_overlap_time", 0)
        self._seconds += max(0, exposed) * 1e-9  # of the latest pass; to be called once a step
        return self._seconds


def train(kind: str, epochs: int) -> tuple[nn.Module, dict[str, object]]:
    """Trains; returns the model and the figures of this rank."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)  # in every way alike; so small a net gains nothing from more
    torch.manual_seed(SEED)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    wrapped, waited = wrap(kind, model, optimizer)
    images, digits, _, _ = load()
    order = torch.Generator().manual_seed(SEED)  # the same on all ranks: each takes its part of every batch
    losses: list[float] = []
    began = wait_began = 0.0
    batches = len(images) // GLOBAL_BATCH
    for _epoch in range(epochs):
        shuffled = torch.randperm(len(images), generator=order)
        for batch in shuffled[: batches * GLOBAL_BATCH].view(batches, GLOBAL_BATCH):
            if len(losses) == WARM_UP_STEPS:
                began, wait_began = time.perf_counter(), waited()
            mine = batch[rank::world_size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(wrapped(images[mine]), digits[mine])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
            wait = waited()
        if rank == 0:
            print(json.dumps({"step": len(losses), "loss": losses[-1]}), flush=True)
    steps = len(losses) - WARM_UP_STEPS
    seconds = time.perf_counter() - began
    figures = {"steps_per_s": steps / seconds, "wait_share": (wait - wait_began) / seconds, "losses": losses}
    return model, figures


def main() -> None:
    """Runs in every rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("pelton", "ddp", "single"), required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    model, figures = train(options.kind, options.epochs)
    _, _, images, digits = load()
    with torch.no_grad():
        figures["accuracy"] = (model.eval()(images).argmax(1) == digits).float().mean().item()
    state = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    figures["parameters"] = hashlib.sha256(state).hexdigest()
    (options.out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(figures))
    if options.kind == "ddp":
        torch.distributed.destroy_process_group()
    elif options.kind == "pelton":
        import pelton.torch_api as bagua

        bagua.destroy_process_group()


if __name__ == "__main__":
    main()
