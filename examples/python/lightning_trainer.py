"""Lightning's Trainer with eight bits an element: the strategy "bagua" in the place of "ddp".

pelton run -np 2 examples/python/lightning_trainer.py
"""

from __future__ import annotations

import lightning
import torch
from digits import accuracy, batches, make_model
from pelton.lightning import BaguaStrategy
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

torch.set_num_threads(1)


class Digits(lightning.LightningModule):
    """Nothing in it knows of Pelton."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_model()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        """The loss of one batch."""
        return cross_entropy(self.net(batch[0]), batch[1])

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's batches of ten epochs."""
        own = batches(self.trainer.global_rank, self.trainer.world_size, epochs=10)
        return DataLoader(list(own), batch_size=None)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """What the strategy wraps the module with."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


module = Digits()
trainer = lightning.Trainer(
    strategy=BaguaStrategy("bytegrad"),
    accelerator="cpu",
    devices=2,
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    use_distributed_sampler=False,
)
trainer.fit(module)
print(f"rank {trainer.global_rank}: accuracy {accuracy(module.net):.3f}")
