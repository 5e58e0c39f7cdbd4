"""A rank of test_lightning.py: `lightning_main.py FOLDER train|resume|half|rest [ALGORITHM...]`.

Prints a line for each check that holds; errors end it. `half` saves a checkpoint in the middle, and `rest`, of another
number of ranks, goes on from it.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import lightning
import pelton.torch_api as bagua
import pytest
import torch
from pelton.errors import InvalidArgument
from pelton.lightning import BaguaStrategy
from pelton.torch_api.algorithms import GlobalAlgorithmRegistry
from pelton.torch_api.algorithms.one_bit_adam import OneBitAdamOptimizer
from pelton.torch_api.algorithms.q_adam import QAdamOptimizer
from pelton.torch_api.algorithms.zero_one_adam import ZeroOneAdamOptimizer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

# What the algorithms are tried with; one that is not named here is tried with its defaults. No interval ends with an
# epoch of six steps, so that ranks which run apart are apart when a checkpoint is saved.
OPTIONS: dict[str, dict[str, Any]] = {
    "bytegrad": {"codec": "one_bit", "hierarchical": False},
    "decentralized": {"hierarchical": False},
    "diloco": {"interval": 5},
    "local_sgd": {"interval": 5},
    "low_precision_decentralized": {"hierarchical": False},
    "noloco": {"interval": 5},
    "post_local_sgd": {"warmup_steps": 3, "interval": 5},
    "qadam": {"hierarchical": False},
    "slowmo": {"interval": 5},
}
OPTIMIZERS: dict[str, Any] = {
    "qadam": functools.partial(QAdamOptimizer, warmup_steps=4, variance_floor=0.01),
    "one_bit_adam": functools.partial(OneBitAdamOptimizer, warmup_steps=4, variance_floor=0.01),
    "zero_one_adam": ZeroOneAdamOptimizer,
}
ALGORITHMS = GlobalAlgorithmRegistry.available_algorithms()
# Rounds of these begin by the clock, so that no two runs are the same.
BY_THE_CLOCK = ("async", "async_model_average", "asynchronous_pairs", "asynchronous_push_sum")
# What of some algorithms another number of ranks goes on with: where ranks are equal, and where they run apart.
REMEMBERED = {"bytegrad": "/residual", "diloco": "momentum"}
REPEATING = [name for name in ALGORITHMS if name not in BY_THE_CLOCK]


class Net(lightning.LightningModule):
    """BatchNorm has buffers; `sync_dist` has Lightning reduce over the ranks."""

    def __init__(self, algorithm: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.algorithm = algorithm
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        if self.algorithm in OPTIMIZERS:
            return OPTIMIZERS[self.algorithm](self.parameters(), lr=3e-2)
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class TwoOptimizers(lightning.LightningModule):
    """Steps each of its nets by an optimizer of its own, like a GAN."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

    def training_step(self, batch: Any, number: int) -> None:
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.zero_grad()
            self.manual_backward(functional.cross_entropy(self.second(self.first(batch[0]).relu()), batch[1]))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(net.parameters(), lr=0.1) for net in (self.first, self.second)]


def data() -> DataLoader[Any]:
    """The same on every rank; Lightning gives each its share of it."""
    inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=8)


def fit(strategy: Any, module: lightning.LightningModule, epochs: int = 2, path: Any = None, **options: Any) -> Any:
    trainer = lightning.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "2")),
        max_epochs=epochs,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        **options,
    )
    trainer.fit(module, data(), ckpt_path=path)
    return trainer


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in module.parameters()])


def trained(strategy: Any, make: Any = Net, **options: Any) -> torch.Tensor:
    module = make()
    fit(strategy, module, **options)
    return weights(module)


def check_ddp() -> None:
    for _ in range(2):
        trained("bagua")
    assert (bagua.get_rank(), bagua.get_world_size()) == (torch.distributed.get_rank(), 2), "after the Trainer's end"
    for options in ({}, {"accumulate_grad_batches": 3}, {"gradient_clip_val": 0.1}):
        assert torch.equal(trained("bagua", **options), trained("ddp", **options)), options
    assert torch.equal(trained("pelton", TwoOptimizers), trained("ddp_find_unused_parameters_true", TwoOptimizers))


def check_reductions() -> None:
    """Lightning reduces by torch.distributed, and not at all where that is not initialised."""
    for _ in range(2):
        torch.distributed.destroy_process_group()
        mine = torch.as_tensor(fit("bagua", Net()).callback_metrics["loss"]).clone()
        of_rank_0 = mine.clone()
        bagua.broadcast(of_rank_0, src=0)
        assert torch.equal(mine, of_rank_0), (mine, of_rank_0)


def strategy_of(name: str, **options: Any) -> BaguaStrategy:
    return BaguaStrategy(name, **OPTIONS.get(name, {}), **options)


def check_algorithm(name: str) -> None:
    module = Net(name)
    before = weights(module)
    trainer = fit(strategy_of(name), module)
    after = weights(module)
    assert torch.isfinite(after).all() and not torch.equal(before, after), name
    rank_0s = after.clone()
    bagua.broadcast(rank_0s, src=0)
    assert torch.equal(after, rank_0s), f"{name}: the ranks differ after fit"
    # ln 3 = 1.10 is that of a guess; in twelve steps of one bit an element it goes down by a seventh.
    assert trainer.callback_metrics["loss"] < 1.0, (name, trainer.callback_metrics)
    module.net(torch.ones(4, 8)).sum().backward()  # a plain model again: no peer is needed


def check_resumed(name: str, folder: str) -> None:
    """Bit by bit on each rank, from weights, momenta and memory of its own."""
    whole, halves, rest = (Net(name) for _ in range(3))
    fit(strategy_of(name, consolidate=False), whole, epochs=4)
    path = f"{folder}/{name}.ckpt"
    fit(strategy_of(name), halves, callbacks=[_SaveAtEnd(path)])
    nn.init.zeros_(next(rest.parameters()))
    fit(strategy_of(name, consolidate=False), rest, epochs=4, path=path)
    assert torch.equal(weights(whole), weights(rest)), (weights(whole) - weights(rest)).abs().max()
    parts = torch.load(path, weights_only=True)["pelton_ranks"]
    assert [part["algorithm"]["rank"] for part in parts] == [0, 1]


def check_parts(folder: str) -> None:
    """A rank's own is in the file only if it differs from rank 0's."""
    for name, has_weights in (("gradient_allreduce", False), ("local_sgd", True)):
        parts = torch.load(f"{folder}/{name}.ckpt", weights_only=True)["pelton_ranks"]
        own = parts[1]["own"]
        assert not parts[0]["own"] and ("optimizer", 0, "groups") not in own
        for key in (("model", "net.0.weight"), ("optimizer", 0, "state", 0)):
            assert (key in own) == has_weights, (name, key)


def check_another_algorithm(folder: str) -> None:
    path = f"{folder}/local_sgd.ckpt"
    with pytest.raises(InvalidArgument, match="it is that of local_sgd"):
        fit(BaguaStrategy("bytegrad"), Net(), epochs=4, path=path)
    module = Net()
    fit(BaguaStrategy("bytegrad", algorithm_state=False), module, epochs=2, path=path)  # epochs that are over
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert all(torch.equal(parameter, saved[name]) for name, parameter in module.named_parameters())


def check_weights_alone(folder: str) -> None:
    path = f"{folder}/weights.ckpt"
    fit(strategy_of("local_sgd"), Net(), callbacks=[_SaveAtEnd(path, weights_only=True)])
    assert "pelton_ranks" not in torch.load(path, weights_only=True)


class _SaveAtEnd(lightning.Callback):
    def __init__(self, path: str, weights_only: bool = False) -> None:
        self.path = path
        self.weights_only = weights_only

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        trainer.save_checkpoint(self.path, self.weights_only)


class _Remembers(lightning.Callback):
    """Asks what the algorithm goes on from."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        strategy: Any = trainer.strategy
        state = strategy.wrapped.inner.algorithm_state_dict()
        assert state["rounds"] > 0, state["rounds"]
        kept = [(entry["key"], entry["values"]) for entry in state["tensors"]]
        wanted = [values for key, values in kept if key.endswith(REMEMBERED[self.algorithm])]
        assert any(values.any() for values in wanted), [key for key, _ in kept]


def half_or_rest(folder: str, part: str, algorithm: str) -> None:
    """Of ranks that run apart the others go on from their mean."""
    path = f"{folder}/half.ckpt"
    if part == "half":
        fit(strategy_of(algorithm), Net(), callbacks=[_SaveAtEnd(path)])
    else:
        fit(strategy_of(algorithm), Net(), epochs=4, path=path, callbacks=[_Remembers(algorithm)])


def check_refusal() -> None:
    with pytest.raises(InvalidArgument, match="intervall"):
        fit(BaguaStrategy("local_sgd", intervall=8), Net())


def train() -> None:
    check_ddp()
    print("as under DDP", flush=True)
    for algorithm in ALGORITHMS:
        check_algorithm(algorithm)
        print(algorithm, flush=True)
    check_refusal()
    print("refused", flush=True)
    check_reductions()
    print("reduces without a group", flush=True)


def resume(folder: str, algorithms: Sequence[str]) -> None:
    for algorithm in algorithms or REPEATING:
        check_resumed(algorithm, folder)
        print(algorithm, flush=True)
    check_parts(folder)
    check_another_algorithm(folder)
    check_weights_alone(folder)
    print("files", flush=True)


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    folder, part, *names = sys.argv[1:]
    if part == "train":
        train()
    elif part == "resume":
        resume(folder, names)
    else:
        half_or_rest(folder, part, *names)
        print("done", flush=True)
