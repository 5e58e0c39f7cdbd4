"""Bagua's synthetic benchmark: images a second that a job trains on, in Bagua's words.

    pelton run -np 4 -m pelton.script.bagua_sys_perf --model vgg16

Every rank trains on one batch of random images, again and again. Needs torchvision for its models.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pelton import torch_api
from pelton._training.algorithms import Algorithm

_CLASSES = 1000
_PIXELS = 224
_CONFIDENCE = 1.96  # standard deviations about the mean, which hold 95 % of a normal distribution


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bagua_sys_perf", description="PyTorch Synthetic Benchmark", allow_abbrev=False
    )
    parser.add_argument("--model", default="resnet50", help="of torchvision.models (default: resnet50)")
    parser.add_argument("--algorithm", default="gradient_allreduce", help="as `pelton algorithms` lists them")

    def number(flag: str, default: int, text: str) -> None:
        parser.add_argument(flag, type=int, default=default, help=f"{text} (default: {default})")

    number("--batch-size", 32, "images of a batch, on each rank")
    number("--num-warmup-batches", 10, "batches that do not count")
    number("--num-batches-per-iter", 10, "batches of an iteration, which is what is timed")
    number("--num-iters", 10, "iterations")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU, also where there are GPUs")
    for flag in ("--fp16-allreduce", "--use-adasum"):
        parser.add_argument(flag, action="store_true", help="refused: Bagua takes it, and sends the same")
    return parser


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(words)
    if options.fp16_allreduce or options.use_adasum:
        parser.error(
            "--fp16-allreduce and --use-adasum change nothing that Bagua sends; --algorithm chooses what is sent"
        )
    numbers = (options.batch_size, options.num_batches_per_iter, options.num_iters)
    if min(numbers) < 1 or options.num_warmup_batches < 0:
        parser.error("--batch-size, --num-batches-per-iter and --num-iters must be at least 1, --num-warmup-batches 0")
    try:
        models: Any = importlib.import_module("torchvision.models")
    except ImportError as error:
        parser.error(f"--model {options.model}: torchvision has the models ({error}); pip install torchvision")
    options.make = getattr(models, options.model, None)
    if not callable(options.make):
        parser.error(f"--model {options.model}: is not one of torchvision.models")
    return options


def _step(options: argparse.Namespace, device: torch.device) -> Callable[[], None]:
    """A function that trains on one batch; it returns when the batch is done, on a GPU too."""
    made: nn.Module = options.make()
    made.to(device)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.01 * torch_api.get_world_size())
    model: Any = made
    model = model.with_bagua([optimizer], Algorithm.init(options.algorithm))
    images = torch.randn(options.batch_size, 3, _PIXELS, _PIXELS, device=device)
    classes = torch.randint(_CLASSES, (options.batch_size,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


def _say(text: str) -> None:
    """Prints a line on rank 0."""
    if torch_api.get_rank() == 0:
        print(text, flush=True)


def _measure(options: argparse.Namespace, step: Callable[[], None], name: str) -> list[float]:
    """The speed of each iteration on this rank. Units: images a second."""
    _say("Running warmup...")
    for _ in range(options.num_warmup_batches):
        step()
    _say("Running benchmark...")
    speeds = []
    for number in range(options.num_iters):
        begin = time.perf_counter()
        for _ in range(options.num_batches_per_iter):
            step()
        speeds.append(options.batch_size * options.num_batches_per_iter / (time.perf_counter() - begin))
        _say(f"Iter #{number}: {speeds[-1] * torch_api.get_world_size():.1f} img/sec {name}")
    return speeds


def main() -> None:
    """Runs the benchmark as a rank of a job.

    Raises:
      SystemExit: with 2, a flag is wrong, or torchvision is missing.
      PeltonError: the ranks could not meet, or one was lost.
    """
    options = _options(None)
    is_gpu = torch.cuda.is_available() and not options.no_cuda
    device = torch.device("cuda", torch_api.get_local_rank()) if is_gpu else torch.device("cpu")
    if is_gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    torch_api.init_process_group()
    size, name = torch_api.get_world_size(), "GPU" if is_gpu else "CPU"
    step = _step(options, device)
    _say(f"Model: {options.model}\nBatch size: {options.batch_size}\nNumber of {name}s: {size}")
    speeds = _measure(options, step, name)
    mean, confidence = statistics.fmean(speeds), _CONFIDENCE * statistics.pstdev(speeds)
    _say(f"Img/sec per {name}: {mean:.1f} +-{confidence:.1f}")
    _say(f"Total img/sec on {size} {name}(s): {size * mean:.1f} +-{size * confidence:.1f}")
    torch_api.destroy_process_group()


if __name__ == "__main__":
    main()
