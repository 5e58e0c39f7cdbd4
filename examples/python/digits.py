"""Handwritten digits (scikit-learn ships them), and a small net: what the examples of this folder train."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_model() -> nn.Module:
    """The same on every rank; wrapping would see to that, too."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def _tensors(part: slice) -> TensorDataset:
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[part]
    return TensorDataset(torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(digits)[order])


def batches(rank: int, ranks: int, epochs: int, size: int = 32) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's share of the training data: shuffled anew in every epoch, equally many batches on every rank."""
    data = _tensors(slice(0, 1500))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, num_replicas=ranks, rank=rank)
    loader = DataLoader(data, batch_size=size // ranks, sampler=sampler, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield from loader


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """On data that nobody trains on."""
    images, digits = _tensors(slice(1500, None)).tensors
    was_training = model.training
    model.eval()
    share = (model(images).argmax(1) == digits).float().mean().item()
    model.train(was_training)
    return share
