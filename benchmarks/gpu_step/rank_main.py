"""One rank: the time of a training step on a GPU, alone, under DDP and under algorithms of Pelton's, in turns. Rank 0
prints.

Started by tools/gpu_check, or by `pelton run -np N benchmarks/gpu_step/rank_main.py`, with a daemon by `pelton run
--backend daemon`. DDP takes part where NCCL has a rank for each GPU, or lets ranks share one. An algorithm is a name
and, behind a colon, its options: local_sgd:interval=1, or
decentralized:peer_selection_mode="shift_one",hierarchical=False.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pelton
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from pelton.torch_api.algorithms.q_adam import QAdamOptimizer
from torch import nn

Step = Callable[[], None]
ALGORITHMS = ["gradient_allreduce", "bytegrad"]


def _net(width: int, device: torch.device) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers).to(device)


def _step(model: Any, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def _wrapped(model: Any, optimizer: torch.optim.Optimizer, algorithm: str) -> tuple[Any, torch.optim.Optimizer]:
    name, _, options = algorithm.partition(":")
    call = ast.parse(f"f({options})", mode="eval").body
    assert isinstance(call, ast.Call)
    given = {str(option.arg): ast.literal_eval(option.value) for option in call.keywords}
    if name == "qadam":  # its first moments are communicated once it is warm
        optimizer = QAdamOptimizer(model.parameters(), lr=1e-5, warmup_steps=2)
    return pelton.wrap(model, optimizer, algorithm=name, **given), optimizer


def _steps(width: int, batch: int, device: torch.device, contestants: list[str]) -> dict[str, Step]:
    inputs = torch.randn(batch, width, device=device)
    steps = {}
    for name in contestants:
        model: Any = _net(width, device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        if name == "ddp":
            if not dist.is_nccl_available() or device.type != "cuda":
                continue
            group = dist.new_group(backend="nccl")  # the default group is Pelton's
            model = nn.parallel.DistributedDataParallel(model, [device.index], process_group=group)
        elif name != "alone":
            model, optimizer = _wrapped(model, optimizer, name)
        steps[name] = _step(model, optimizer, inputs)
    return steps


def _seconds(step: Step, count: int) -> float:
    """Of one step. Blocks: until the device has done them."""
    torch.accelerator.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    torch.accelerator.synchronize()
    return (time.perf_counter() - start) / count


def main() -> None:
    """Prints a line for each contestant: the median of its turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4096, help="of the eight layers")
    parser.add_argument("--batch", type=int, default=512, help="rows of a rank")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="in a turn")
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS, help="of Pelton's, as above")
    parser.add_argument("--no-ddp", action="store_true", help="leave DDP out")
    parser.add_argument("--result", type=Path, help="a file that rank 0 writes its medians to: JSON, milliseconds")
    parser.add_argument("--module", help="imported first: what makes a device that stands in for a GPU")
    options = parser.parse_args()
    if options.module:
        __import__(options.module).load()
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        raise SystemExit("gpu_step: no GPU here")
    bagua.init_process_group()
    device = torch.device(accelerator.type, bagua.get_local_rank() % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)
    contestants = ["alone", *([] if options.no_ddp else ["ddp"]), *options.algorithms]
    steps = _steps(options.width, options.batch, device, contestants)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():  # what a first step sets up, and the clock that a device at rest raises, count for none
        _seconds(step, options.steps)
    for _ in range(options.turns):
        for name, step in steps.items():
            times[name].append(_seconds(step, options.steps))
    if bagua.get_rank() == 0:
        megabytes = 8 * options.width * (options.width + 1) * 4 / 1e6
        print(f"a step of {bagua.get_world_size()} rank(s), {megabytes:.0f} MB of gradients on {device}:")
        medians = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        for name, median in medians.items():
            print(f"  {name:<70}{median:9.3f} ms")
        if options.result:
            options.result.write_text(json.dumps(medians))
    bagua.destroy_process_group()


if __name__ == "__main__":
    main()
