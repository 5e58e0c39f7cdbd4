"""A rank of test_lightning.py under Lightning's other package. Prints a line for each check that holds."""

from __future__ import annotations

import logging
from typing import Any

import pelton.lightning
import pytest
import pytorch_lightning as pl  # after pelton.lightning, as sorted imports are
import torch
from pelton.pytorch_lightning import BaguaStrategy
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    """As that of lightning_main.py, which is of the package `lightning`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def trained(strategy: Any) -> torch.Tensor:
    inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    module = Net()
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        max_epochs=2,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=8))
    assert strategy == "ddp" or isinstance(trainer.strategy, BaguaStrategy)
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


if __name__ == "__main__":
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    by_name = trained("bagua")
    assert torch.equal(by_name, trained("ddp"))
    assert torch.equal(by_name, trained("pelton"))
    print("by name", flush=True)
    other = trained(BaguaStrategy("bytegrad", hierarchical=False))
    assert not torch.equal(other, by_name)
    torch.testing.assert_close(other, by_name, rtol=0.1, atol=0.1)
    print("by class", flush=True)
    with pytest.raises(ValueError, match=r"pytorch_lightning.Trainer takes pelton.pytorch_lightning.BaguaStrategy"):
        trained(pelton.lightning.BaguaStrategy())
    print("refused", flush=True)
