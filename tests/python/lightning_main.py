"""A rank of test_lightning.py: `lightning_main.py FOLDER [half|rest]`. Prints a line for each check that holds.

Errors end it. `half` saves a checkpoint in the middle, and `rest`, of another number of ranks, goes on from it.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import lightning
import pelton.torch_api as bagua
import pytest
import torch
from pelton.errors import InvalidArgument
from pelton.lightning import BaguaStrategy
from pelton.torch_api.algorithms.one_bit_adam import OneBitAdamOptimizer
from pelton.torch_api.algorithms.q_adam import QAdamOptimizer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

ALGORITHMS: dict[str, dict[str, Any]] = {
    "async": {},
    "bytegrad": {"codec": "one_bit"},
    "decentralized": {"hierarchical": False},
    "diloco": {"interval": 4},
    "local_sgd": {"interval": 4},
    "low_precision_decentralized": {"hierarchical": False},
    "one_bit_adam": {},
    "power_sgd": {},
    "qadam": {"hierarchical": False},
}
OPTIMIZERS = {"qadam": QAdamOptimizer, "one_bit_adam": OneBitAdamOptimizer}


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
            return OPTIMIZERS[self.algorithm](self.parameters(), lr=3e-2, warmup_steps=4, variance_floor=0.01)
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


def check_algorithm(name: str) -> None:
    module = Net(name)
    before = weights(module)
    trainer = fit(BaguaStrategy(name, **ALGORITHMS[name]), module)
    after = weights(module)
    assert torch.isfinite(after).all() and not torch.equal(before, after), name
    rank_0s = after.clone()
    bagua.broadcast(rank_0s, src=0)
    assert torch.equal(after, rank_0s), f"{name}: the ranks differ after fit"
    assert trainer.callback_metrics["loss"] < 0.9, (name, trainer.callback_metrics)
    module.net(torch.ones(4, 8)).sum().backward()  # a plain model again: no peer is needed


def check_resumed(folder: str) -> None:
    def strategy() -> BaguaStrategy:
        return BaguaStrategy("bytegrad", **ALGORITHMS["bytegrad"])

    whole, halves = Net(), Net()
    fit(strategy(), whole, epochs=4)
    path = f"{folder}/half.ckpt"
    fit(strategy(), halves, epochs=2, callbacks=[_SaveAtEnd(path)])
    fit(strategy(), halves, epochs=4, path=path)
    assert torch.equal(weights(whole), weights(halves))
    states = torch.load(path, weights_only=True)["pelton_algorithm_states"]
    assert len(states) == 2 and str(states[0]) != str(states[1])


class _SaveAtEnd(lightning.Callback):
    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        trainer.save_checkpoint(self.path)


class _Remembers(lightning.Callback):
    """Asks what the algorithm goes on from."""

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        strategy: Any = trainer.strategy
        state = strategy.wrapped.inner.algorithm_state_dict()
        assert state["rounds"] > 0, state["rounds"]
        held_back = [entry["values"] for entry in state["tensors"] if entry["key"].endswith("/residual")]
        assert any(values.any() for values in held_back), "what error feedback held back is lost"


def half_or_rest(folder: str, part: str) -> None:
    strategy = BaguaStrategy("bytegrad", codec="one_bit", hierarchical=False)
    path = f"{folder}/half.ckpt"
    if part == "half":
        fit(strategy, Net(), callbacks=[_SaveAtEnd(path)])
    else:
        fit(strategy, Net(), epochs=4, path=path, callbacks=[_Remembers()])


def check_refusal() -> None:
    with pytest.raises(InvalidArgument, match="intervall"):
        fit(BaguaStrategy("local_sgd", intervall=8), Net())


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    if len(sys.argv) == 3:
        half_or_rest(*sys.argv[1:])
        print("done", flush=True)
        sys.exit()
    check_ddp()
    print("as under DDP", flush=True)
    for algorithm in ALGORITHMS:
        check_algorithm(algorithm)
        print(algorithm, flush=True)
    check_resumed(sys.argv[1])
    print("resumed", flush=True)
    check_refusal()
    print("refused", flush=True)
