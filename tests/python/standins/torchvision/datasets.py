"""Data sets of noise with a class-dependent mean, the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset


class _Noise(Dataset[tuple[Any, int]]):
    """Images by number. Threads: a value. Owns: nothing."""

    def __init__(self, count: int, shape: tuple[int, ...], transform: Callable[[Any], Any] | None) -> None:
        self._count, self._shape, self._transform = count, shape, transform

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index >= self._count:
            raise IndexError(index)
        label = index % 10
        noise = torch.randn(self._shape, generator=torch.Generator().manual_seed(index))
        image = noise * 0.1 + label / 5 - 1
        return image if self._transform is None else self._transform(image), label


class MNIST(_Noise):
    """256 images to train with, 64 to test. Threads: a value. Owns: nothing."""

    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        super().__init__(256 if train else 64, (1, 28, 28), transform)


class ImageFolder(_Noise):
    """64 images of 32 by 32. Threads: a value. Owns: nothing."""

    def __init__(self, root: str, transform: Callable[[Any], Any] | None = None) -> None:
        super().__init__(64, (3, 32, 32), transform)
