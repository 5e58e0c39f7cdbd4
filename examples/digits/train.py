"""One rank of the demonstration: trains a small convolutional net on handwritten digits.

    pelton run -np 4 examples/digits/train.py --kind bytegrad --out FOLDER

The kinds, "ddp", "single" and the names of Pelton's algorithms, differ in `wrap` alone. Progress goes to standard
output as JSON lines, results to FOLDER/rank<N>.json and the parameters to FOLDER/rank<N>.npy.
"""

from __future__ import annotations

import argparse
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

Figures = Callable[[], tuple[float, float]]
"""Seconds that training has waited for communication since the start, and bytes that this rank has sent."""


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


def wrap(kind: str, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer, Figures]:
    """Makes the ranks train one model; returns it, what steps it, and what it costs."""
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if kind == "ddp":
        torch.distributed.init_process_group("gloo")
        parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        parallel._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
        return parallel, optimizer, _DdpFigures(parallel)
    if kind == "single":
        return model, optimizer, lambda: (0.0, 0.0)
    import pelton.torch_api as bagua

    bagua.init_process_group()
    algorithm, optimizer = make_algorithm(kind, model, optimizer)
    wrapped = model.with_bagua([optimizer], algorithm)  # type: ignore[operator]

    return wrapped, optimizer, _PeltonFigures(wrapped)


def make_algorithm(
    name: str, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[object, torch.optim.Optimizer]:
    """The algorithm of that name, with options that suit so short a training, and the optimizer that it goes with."""
    from pelton.torch_api.algorithms import Algorithm, one_bit_adam, q_adam, zero_one_adam

    if name == "qadam":
        optimizer = q_adam.QAdamOptimizer(model.parameters(), lr=0.002, warmup_steps=60)
        return q_adam.QAdamAlgorithm(optimizer, hierarchical=False), optimizer
    if name == "one_bit_adam":
        # A sign an element needs a settled variance: half of the training warms it up.
        optimizer = one_bit_adam.OneBitAdamOptimizer(model.parameters(), lr=0.001, warmup_steps=132, eps=1e-4)
        return one_bit_adam.OneBitAdamAlgorithm(optimizer, hierarchical=False), optimizer
    if name == "zero_one_adam":
        optimizer = zero_one_adam.ZeroOneAdamOptimizer(
            model.parameters(), lr=0.001, eps=1e-4, variance_freeze_step=132, doubling_steps=60, max_local_steps=4
        )
        return zero_one_adam.ZeroOneAdamAlgorithm(optimizer, hierarchical=False, codec="block_int4"), optimizer
    options: dict[str, dict[str, object]] = {
        "async": {"sync_interval_ms": 20, "warmup_steps": 20},
        "decentralized": {"peer_selection_mode": "shift_one"},
        "diloco": {"interval": 4, "outer_momentum": 0.5},
        "slowmo": {"interval": 4, "slow_learning_rate": 0.5, "slow_momentum": 0.5},
        "post_local_sgd": {"warmup_steps": 60},
        # Within one host a hierarchical one encodes nothing.
        "bytegrad": {"hierarchical": False},
        "low_precision_decentralized": {"hierarchical": False},
    }
    return Algorithm.init(name, **options.get(name, {})), optimizer


class _PeltonFigures:
    """What Pelton counts, over all phases of an algorithm: each begins to count anew."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._earlier = self._last = (0.0, 0.0)

    def __call__(self) -> tuple[float, float]:
        counts = self._model.bagua_ddp.statistics()  # type: ignore[union-attr, operator]
        now = counts["wait_seconds"], counts["sent_bytes"]
        if now[1] < self._last[1]:
            self._earlier = self._earlier[0] + self._last[0], self._earlier[1] + self._last[1]
        self._last = now
        return self._earlier[0] + now[0], self._earlier[1] + now[1]


class _DdpFigures:
    """What DDP itself measures in each backward pass, summed up.

    Waiting is the part of its communication that lies after the last gradient was computed: the time of communication
    less the time in which it overlapped with computation. Pelton counts the same: how long the end of the backward
    pass was blocked.
    """

    def __init__(self, model: nn.parallel.DistributedDataParallel) -> None:
        self._model = model
        self._seconds = 0.0
        self._bytes = 0.0
        size = torch.distributed.get_world_size()
        parameters = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        self._bytes_per_pass = 2 * parameters * (size - 1) / size  # an allreduce's; gloo does not count

    def __call__(self) -> tuple[float, float]:
        # Without times before the second pass.
        figures = self._model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        exposed = figures.get("backward_comm_time", 0) - figures.get("backward_compute_comm_overlap_time", 0)
        self._seconds += max(0, exposed) * 1e-9  # of the latest pass; to be called once a step
        self._bytes += self._bytes_per_pass
        return self._seconds, self._bytes


def train(kind: str, epochs: int) -> tuple[nn.Module, dict[str, object]]:
    """Trains; returns the model and the figures of this rank."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)  # in every way alike; so small a net gains nothing from more
    torch.manual_seed(SEED)
    model = ConvNet()
    wrapped, optimizer, figures_so_far = wrap(kind, model)
    images, digits, _, _ = load()
    order = torch.Generator().manual_seed(SEED)  # the same on all ranks: each takes its part of every batch
    losses: list[float] = []
    longest = began = 0.0
    before = now = (0.0, 0.0)
    batches = len(images) // GLOBAL_BATCH
    for _epoch in range(epochs):
        shuffled = torch.randperm(len(images), generator=order)
        for batch in shuffled[: batches * GLOBAL_BATCH].view(batches, GLOBAL_BATCH):
            if len(losses) == WARM_UP_STEPS:
                began, before, longest = time.perf_counter(), now, 0.0
            step_began = time.perf_counter()
            mine = batch[rank::world_size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(wrapped(images[mine]), digits[mine])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
            longest = max(longest, time.perf_counter() - step_began)
            now = figures_so_far()
        if rank == 0:
            print(json.dumps({"step": len(losses), "loss": losses[-1]}), flush=True)
    steps = len(losses) - WARM_UP_STEPS
    seconds = time.perf_counter() - began
    figures = {
        "steps_per_s": steps / seconds,
        "longest_step_s": longest,
        "wait_share": (now[0] - before[0]) / seconds,
        "bytes_per_step": (now[1] - before[1]) / steps,
        "losses": losses,
    }
    return model, figures


def main() -> None:
    """Runs in every rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    model, figures = train(options.kind, options.epochs)
    _, _, images, digits = load()
    with torch.no_grad():
        figures["accuracy"] = (model.eval()(images).argmax(1) == digits).float().mean().item()
    rank = os.environ["RANK"]
    numpy.save(options.out / f"rank{rank}.npy", nn.utils.parameters_to_vector(model.parameters()).detach().numpy())
    (options.out / f"rank{rank}.json").write_text(json.dumps(figures))
    if options.kind == "ddp":
        torch.distributed.destroy_process_group()
    elif options.kind != "single":
        import pelton.torch_api as bagua

        bagua.destroy_process_group()


if __name__ == "__main__":
    main()
