"""One rank of stragglers.py: `rank.py MODE SECONDS SLOW_MS WORK_MS FOLDER` writes what it measured to FOLDER."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.torch_api.algorithms.decentralized import DecentralizedAlgorithm
from torch import nn

# Buffers are made in the first, and nothing is known of the ranks' pace.
_UNCOUNTED = 10


class _Work(nn.Module):
    """Takes its time as a GPU's kernels would: without the processor, which the ranks share here."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        self.seconds = seconds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        result: torch.Tensor = self.layers(inputs)
        return result


def main() -> None:
    """Trains for some seconds and writes the median step and the number of steps."""
    mode, seconds = sys.argv[1], float(sys.argv[2])
    slow_s, work_s, folder = float(sys.argv[3]) / 1e3, float(sys.argv[4]) / 1e3, Path(sys.argv[5])
    torch.set_num_threads(1)
    bagua.init_process_group()
    rank, size = bagua.get_rank(), bagua.get_world_size()
    is_slow = rank == size - 1
    model: Any = _Work(slow_s if is_slow else work_s)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if mode != "none":
        model.with_bagua([optimizer], DecentralizedAlgorithm(hierarchical=False, peer_selection_mode=mode))
    inputs = torch.randn(8, 256)
    steps: list[float] = []
    # Where ranks go together they take equally many steps: what the slowest one can take in the time.
    most = int(seconds / max(slow_s, work_s)) if mode not in ("none", "avoid_stragglers") else 1 << 60
    end = time.perf_counter() + seconds
    while len(steps) < most and (most < 1 << 60 or time.perf_counter() < end):
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        steps.append(time.perf_counter() - begin)
    report = {"rank": rank, "steps": len(steps), "median_ms": statistics.median(steps[_UNCOUNTED:]) * 1e3}
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(report))
    if mode != "none":
        model.bagua_ddp.consolidate()  # nobody leaves before the others have ended


if __name__ == "__main__":
    main()
