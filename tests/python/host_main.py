"""A rank of a job on several hosts: reduces, trains, and prints as JSON what it saw."""

from __future__ import annotations

import json

import pelton.torch_api as bagua
import torch
from cases.checks import make_mlp, seeded
from cases.worlds import World, sgd, train_step
from pelton._training import _session
from pelton.torch_api.algorithms import Algorithm

STEPS = 3
# With hierarchical=True, each: what averages gradients, and what averages weights beside the step.
OF_GRADIENTS: dict[str, dict[str, str]] = {"gradient_allreduce": {}, "bytegrad": {}}
OF_WEIGHTS = {
    "decentralized": {"peer_selection_mode": "all"},
    "shift_one": {"peer_selection_mode": "shift_one"},  # with two hosts the mean of both, each round
}


def _train(name: str, options: dict[str, str]) -> torch.Tensor:
    """This rank's weights after some steps under a hierarchical algorithm."""
    model = seeded(0, make_mlp)
    optimizer = sgd(model)
    kind = "decentralized" if name == "shift_one" else name
    model.with_bagua([optimizer], Algorithm.init(kind, hierarchical=True, **options))
    for step in range(STEPS):
        train_step(model, optimizer, step)
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def _simulate(*, averages_gradients: bool) -> torch.Tensor:
    """What this rank's weights have to be. A step by the mean of the gradients is the mean of the ranks' own steps."""
    world = World()
    for step in range(STEPS):
        world.backward(step)
        if not averages_gradients:
            world.set_weights([world.means()] * world.size)
        world.step()
        if averages_gradients:
            world.set_weights([world.means()] * world.size)
    return torch.nn.utils.parameters_to_vector(world.mine())


def main() -> None:
    """Without an argument: the environment says who this is."""
    bagua.init_process_group()
    rank = bagua.get_rank()
    large = torch.full((300_000,), float(rank + 1))
    bagua.allreduce_inplace(large)
    mean = torch.full((5,), float(rank))
    bagua.allreduce_inplace(mean, op=bagua.ReduceOp.AVG)
    weights = {name: _train(name, options) for name, options in {**OF_GRADIENTS, **OF_WEIGHTS}.items()}
    expected = {name: _simulate(averages_gradients=name in OF_GRADIENTS) for name in weights}
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
