"""A rank of a job on several hosts: reduces, trains, and prints as JSON what it saw."""

from __future__ import annotations

import json

import pelton.torch_api as bagua
import torch
from pelton.torch_api import _session
from pelton.torch_api.algorithms import Algorithm

STEPS = 3
RATE = 0.1
# With hierarchical=True, each: what averages gradients, and what averages weights beside the step.
OF_GRADIENTS: dict[str, dict[str, str]] = {"gradient_allreduce": {}, "bytegrad": {}}
OF_WEIGHTS = {
    "decentralized": {"peer_selection_mode": "all"},
    "shift_one": {"peer_selection_mode": "shift_one"},  # with two hosts the mean of both, each round
}


def _batch(rank: int) -> torch.Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(100 + rank))


def _model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))


def _weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def _step(model: torch.nn.Module, batches: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    """The loss is the mean of the batches' losses, so that one process can do what the ranks do together."""
    optimizer.zero_grad()
    torch.stack([model(batch).square().mean() for batch in batches]).mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE)


def _train(name: str, options: dict[str, str], rank: int) -> torch.Tensor:
    """This rank's weights after some steps under a hierarchical algorithm."""
    model = _model()
    optimizer = _sgd(model)
    kind = "decentralized" if name == "shift_one" else name
    model.with_bagua([optimizer], Algorithm.init(kind, hierarchical=True, **options))  # type: ignore[operator]
    for _ in range(STEPS):
        _step(model, [_batch(rank)], optimizer)
    return _weights(model)


def _train_together(world_size: int) -> torch.Tensor:
    """What averaging gradients has to give, in one process."""
    model = _model()
    optimizer = _sgd(model)
    for _ in range(STEPS):
        _step(model, [_batch(rank) for rank in range(world_size)], optimizer)
    return _weights(model)


def _train_apart(world_size: int) -> list[torch.Tensor]:
    """What averaging weights beside the step has to give each rank: x = mean of all x - rate * gradient at its x."""
    models = [_model() for _ in range(world_size)]
    for _ in range(STEPS):
        mean = torch.stack([_weights(model) for model in models]).mean(0)
        for rank, model in enumerate(models):
            before = _weights(model)
            _step(model, [_batch(rank)], _sgd(model))
            torch.nn.utils.vector_to_parameters(mean + _weights(model) - before, model.parameters())
    return [_weights(model) for model in models]


def main() -> None:
    """Without an argument: the environment says who this is."""
    bagua.init_process_group()
    rank, world_size = bagua.get_rank(), bagua.get_world_size()
    large = torch.full((300_000,), float(rank + 1))
    bagua.allreduce_inplace(large)
    mean = torch.full((5,), float(rank))
    bagua.allreduce_inplace(mean, op=bagua.ReduceOp.AVG)
    together, apart = _train_together(world_size), _train_apart(world_size)[rank]
    weights = {name: _train(name, options, rank) for name, options in {**OF_GRADIENTS, **OF_WEIGHTS}.items()}
    expected = {name: together if name in OF_GRADIENTS else apart for name in weights}
    result = {
        "host_ranks": _session.current().backend.host_ranks(),
        "sum": sorted(set(large.tolist())),
        "mean": sorted(set(mean.tolist())),
        "weights": {name: weights[name].tolist() for name in OF_GRADIENTS},
        "errors": {name: (own - expected[name]).abs().max().item() for name, own in weights.items()},
    }
    bagua.destroy_process_group()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
