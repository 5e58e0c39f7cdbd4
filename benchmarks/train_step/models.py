"""The four models of the training-step benchmark, each with a batch and a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Case:
    """A model to train. `batch(rank)` gives the inputs and targets of that rank."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[int], tuple[torch.Tensor, torch.Tensor]]


def _mlp(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


class _Transformer(nn.Module):
    """Six encoder layers over token embeddings: some eighty tensors, most of them small."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6)
        self.head = nn.Linear(256, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(dim=1))


def _conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
    )  # fmt: skip


def _dense_batch(size: int, width: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    def batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(rank)
        inputs = torch.randn(size, width, generator=generator)
        return inputs, torch.randint(10, (size,), generator=generator)

    return batch


def _image_batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(16, 3, 32, 32, generator=generator), torch.randint(10, (16,), generator=generator)


def _token_batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(1000, (4, 32), generator=generator), torch.randint(10, (4,), generator=generator)


CASES = (
    Case("mlp 25 MB", lambda: _mlp(1024, 6), _dense_batch(32, 1024)),
    Case("wide mlp 134 MB", lambda: _mlp(4096, 2), _dense_batch(32, 4096)),
    Case("conv net", _conv_net, _image_batch),
    Case("transformer", _Transformer, _token_batch),
)
