"""Every algorithm learns the handwritten digits as well as gradient allreduce, from shards that differ by label.

Of two ranks, nine tenths of the even digits are rank 0's and nine tenths of the odd ones rank 1's, and no rank sees the
other's; of four, ranks differ in the same way. One that learns alone is clearly worse, which the control shows.
Accuracies are means over seeds of model and order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy
import pelton.torch_api as bagua
import torch
from pelton.torch_api.algorithms import Algorithm
from pelton.torch_api.algorithms.one_bit_adam import OneBitAdamOptimizer
from pelton.torch_api.algorithms.q_adam import QAdamOptimizer
from pelton.torch_api.algorithms.zero_one_adam import ZeroOneAdamOptimizer
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from cases.checks import rank_and_size, seeded
from cases.registry import case

EPOCHS = 12
BATCH = 32  # of each rank
SEEDS = (0, 1, 2)
TEST_POINTS = 1.0  # percent
ONE_PEER_POINTS = 0.5  # of the mean of all ranks
STEPS_PER_EPOCH = 19
OWN_SHARE = 0.9  # of the digits of a rank's parity

Setup = Callable[[Any], tuple[Algorithm | None, torch.optim.Optimizer]]


@functools.cache
def _digits() -> list[torch.Tensor]:
    """Images and digits to train on and to test on."""
    digits = load_digits()
    images = digits.images.astype(numpy.float32).reshape(-1, 64) / 16
    parts = train_test_split(images, digits.target, test_size=0.3, random_state=3, stratify=digits.target)
    return [torch.from_numpy(parts[i]) for i in (0, 2, 1, 3)]


def _make() -> Any:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def _sgd(name: str, lr: float = 0.2, momentum: float = 0.9, **options: Any) -> Setup:
    return lambda model: (
        Algorithm.init(name, **options),
        torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum),
    )


def _shard(rank: int, size: int) -> torch.Tensor:
    """The numbers of the images that this rank learns from: most of its own digits, some of the rank before it."""
    digits = _digits()[1]
    is_own = torch.rand(len(digits), generator=torch.Generator().manual_seed(9)) < OWN_SHARE
    return (torch.where(is_own, digits, digits + 1) % size == rank).nonzero().flatten()


def _accuracy(setup: Setup, seed: int) -> float:
    """Of this rank's model, in percent."""
    images, digits, test_images, test_digits = _digits()
    shard = _shard(*rank_and_size())
    model = seeded(seed, _make)
    algorithm, optimizer = setup(model)
    if algorithm is not None:
        model.with_bagua([optimizer], algorithm)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, EPOCHS * STEPS_PER_EPOCH)
    order = torch.Generator().manual_seed(5 + seed)
    for _ in range(EPOCHS):
        shuffled = shard[torch.randperm(len(shard), generator=order)]
        for step in range(STEPS_PER_EPOCH):
            mine = shuffled[torch.arange(step * BATCH, (step + 1) * BATCH) % len(shard)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[mine]), digits[mine]).backward()
            optimizer.step()
            schedule.step()
    if algorithm is not None and hasattr(model.bagua_algorithm, "abort"):
        model.bagua_algorithm.abort(model)
    with torch.no_grad():
        return float((model.eval()(test_images).argmax(1) == test_digits).double().mean()) * 100


def _mean_accuracy(setup: Setup) -> float:
    return sum(_accuracy(setup, seed) for seed in SEEDS) / len(SEEDS)


def _alone(model: Any) -> tuple[None, torch.optim.Optimizer]:
    """The control: nothing is communicated."""
    return None, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def _adam(name: str, kind: Callable[..., torch.optim.Optimizer], codec: str | None = None, **options: Any) -> Setup:
    def setup(model: Any) -> tuple[Algorithm | None, torch.optim.Optimizer]:
        optimizer = kind(model.parameters(), lr=0.02, **options)
        arguments = {f"{name}_optimizer".replace("qadam", "q_adam"): optimizer}
        return Algorithm.init(name, hierarchical=False, codec=codec, **arguments), optimizer

    return setup


def _quasi_global(model: Any, **options: Any) -> tuple[Algorithm, torch.optim.Optimizer]:
    """The momentum is the algorithm's and not the optimizer's."""
    algorithm = Algorithm.init("quasi_global_momentum", momentum=0.5, **options)
    return algorithm, torch.optim.SGD(model.parameters(), lr=0.5)


_RARELY: dict[str, Any] = {
    "variance_freeze_step": 60,
    "doubling_steps": 60,
    "max_local_steps": 4,
    "variance_floor": 0.01,  # many pixels are hardly ever set: next to nothing would divide the signs' noise
}
_SETUPS: dict[str, Setup] = {
    "bytegrad": _sgd("bytegrad", hierarchical=False),
    "bytegrad in 4 bits": _sgd("bytegrad", hierarchical=False, codec="block_int4"),
    # What a sign drops comes steps later; with momentum on top of that the steps have to be smaller.
    "bytegrad in 1 bit": _sgd("bytegrad", hierarchical=False, codec="one_bit", lr=1.5, momentum=0.0),
    "power_sgd": _sgd("power_sgd", rank=4, start_round=1),
    "decentralized": _sgd("decentralized", hierarchical=False),
    "shift_one": _sgd("decentralized", hierarchical=False, peer_selection_mode="shift_one"),
    "low_precision_decentralized": _sgd("low_precision_decentralized", hierarchical=False),
    # In step for half of the training; then the machine's load decides how often ranks meet.
    "async": _sgd("async", sync_interval_ms=2, warmup_steps=EPOCHS // 2 * STEPS_PER_EPOCH),
    "local_sgd": _sgd("local_sgd", interval=4),
    "local_sgd in 4 bits": _sgd("local_sgd", interval=4, hierarchical=False, codec="block_int4"),
    "post_local_sgd": _sgd("post_local_sgd", warmup_steps=20, interval=4),
    "diloco": _sgd("diloco", interval=5, outer_learning_rate=0.7, outer_momentum=0.5),
    "diloco in 4 bits": _sgd(
        "diloco", interval=5, outer_learning_rate=0.7, outer_momentum=0.5, hierarchical=False, codec="block_int4"
    ),
    "slowmo": _sgd("slowmo", interval=5, slow_momentum=0.5),
    "choco_sgd in 4 bits": _sgd("choco_sgd", codec="block_int4"),
    "exact_diffusion": _sgd("exact_diffusion"),
    "gradient_tracking": _sgd("gradient_tracking"),
    "push_sum": _sgd("push_sum"),
    "quasi_global_momentum": _quasi_global,
    "noloco": _sgd("noloco", interval=5),
    "qadam": _adam("qadam", QAdamOptimizer, warmup_steps=40),
    "one_bit_adam": _adam("one_bit_adam", OneBitAdamOptimizer, warmup_steps=60, variance_floor=0.01),
    "zero_one_adam": _adam("zero_one_adam", ZeroOneAdamOptimizer, **_RARELY),
    "zero_one_adam in 4 bits": _adam("zero_one_adam", ZeroOneAdamOptimizer, codec="block_int4", **_RARELY),
}


@case(2)
def digits_are_learnt_as_with_allreduce() -> None:
    wanted = _mean_accuracy(_sgd("gradient_allreduce"))
    alone = _mean_accuracy(_alone)
    found = {name: _mean_accuracy(setup) for name, setup in _SETUPS.items()}
    behind = {name: accuracy for name, accuracy in found.items() if accuracy < wanted - TEST_POINTS}
    assert wanted > 95, wanted
    assert alone < wanted - 2 * TEST_POINTS, f"alone {alone:.2f}, allreduce {wanted:.2f}: this would show nothing"
    assert not behind, f"allreduce has {wanted:.2f}, a rank alone {alone:.2f}; behind are {behind} of {found}"


# Over one peer a step, another in the next one: on four ranks a graph of its own, on two a ring. The algorithms
# exact_diffusion and choco_sgd take no graph that changes, by their theory.
_ONE_PEER: dict[str, Setup] = {
    "gradient_tracking": _sgd("gradient_tracking", graph="one_peer_exponential"),
    "push_sum": _sgd("push_sum", graph="one_peer_exponential"),
    "quasi_global_momentum": lambda model: _quasi_global(model, graph="one_peer_exponential"),
    "noloco": _sgd("noloco", graph="one_peer_exponential", interval=5),
    "slowmo": _sgd("slowmo", base="one_peer_exponential", interval=5, slow_momentum=0.5),
}


def _mean_of_ranks(setup: Setup) -> float:
    total = torch.tensor([_mean_accuracy(setup)], dtype=torch.float64)
    bagua.allreduce_inplace(total, op=bagua.ReduceOp.AVG)
    return float(total)


@case(4)
def digits_are_learnt_over_one_peer_a_step() -> None:
    wanted = _mean_of_ranks(_sgd("gradient_allreduce"))
    alone = _mean_of_ranks(_alone)
    found = {name: _mean_of_ranks(setup) for name, setup in _ONE_PEER.items()}
    behind = {name: accuracy for name, accuracy in found.items() if accuracy < wanted - ONE_PEER_POINTS}
    assert wanted > 95, wanted
    assert alone < wanted - 2 * TEST_POINTS, f"alone {alone:.2f}, allreduce {wanted:.2f}: this would show nothing"
    assert not behind, f"allreduce has {wanted:.2f}, a rank alone {alone:.2f}; behind are {behind} of {found}"
