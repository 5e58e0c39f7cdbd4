"""Models of any image size with a thousand classes, and next to no arithmetic."""

from __future__ import annotations

from torch import nn


def _small(pretrained: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(8), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1000)
    )


resnet18 = resnet50 = vgg16 = _small
