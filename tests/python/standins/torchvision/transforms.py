"""Transforms that leave images as they are: the data sets of the stand-in make tensors of the right size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Compose:
    """One transform after the other. Threads: a value. Owns: nothing."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self._transforms:
            image = transform(image)
        return image


class ToTensor:
    """Does nothing, whatever it is made with. Threads: a value. Owns: nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, image: Any) -> Any:
        return image


Normalize = RandomResizedCrop = RandomHorizontalFlip = Resize = CenterCrop = ToTensor
