"""A rank of a job on several hosts: reduces, trains one step, and prints as JSON what it saw."""

from __future__ import annotations

import json

import pelton.torch_api as bagua
import torch
from pelton.torch_api import _session
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm


def _batch(rank: int) -> torch.Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(100 + rank))


def _model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))


def _step(model: torch.nn.Module, batches: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> list[float]:
    """The loss is the mean of the batches' losses, so that one process can do what the ranks do together."""
    torch.stack([model(batch).square().mean() for batch in batches]).mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


def main() -> None:
    """Without an argument: the environment says who this is."""
    bagua.init_process_group()
    rank, world_size = bagua.get_rank(), bagua.get_world_size()
    large = torch.full((300_000,), float(rank + 1))
    bagua.allreduce_inplace(large)
    mean = torch.full((5,), float(rank))
    bagua.allreduce_inplace(mean, op=bagua.ReduceOp.AVG)
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.with_bagua([optimizer], GradientAllReduceAlgorithm(hierarchical=True))  # type: ignore[operator]
    weights = _step(model, [_batch(rank)], optimizer)
    alone = _model()
    expected = _step(alone, [_batch(r) for r in range(world_size)], torch.optim.SGD(alone.parameters(), lr=0.1))
    result = {
        "host_ranks": _session.current().backend.host_ranks(),
        "sum": sorted(set(large.tolist())),
        "mean": sorted(set(mean.tolist())),
        "weights": weights,
        "error": max(abs(a - b) for a, b in zip(weights, expected)),
    }
    bagua.destroy_process_group()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
