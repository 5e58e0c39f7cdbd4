"""One rank of small_steps.py: `rank.py ALGORITHM STEPS FOLDER` writes what it measured to FOLDER."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

import pelton.torch_api as bagua
import torch
from torch import nn
from variants import VARIANTS, make

# Buffers are made and the order of gradients is agreed on in the first; the Adams change their phase after 32.
_UNCOUNTED = 100


def _model() -> nn.Module:
    hidden = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(128, 10))


def main() -> None:
    """Trains and writes the median and the longest step."""
    name, steps, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    bagua.init_process_group()
    variant = next(variant for variant in VARIANTS if variant.name == name)
    model, optimizer = make(variant, _model, 0.01)
    inputs = torch.randn(32, 128)
    seconds = []
    for _ in range(_UNCOUNTED + steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    counted = seconds[_UNCOUNTED:]
    longest = max(counted)
    rank = int(os.environ["RANK"])
    report = {
        "rank": rank,
        "median_s": statistics.median(counted),
        "longest_s": longest,
        "step": _UNCOUNTED + counted.index(longest),
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
