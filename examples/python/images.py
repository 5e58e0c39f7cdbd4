"""A convolutional net whose batch statistics are those of all ranks' batches together.

pelton run -np 2 examples/python/images.py
"""

from __future__ import annotations

import pelton
import torch
from digits import accuracy, batches
from pelton.torch_api.contrib import SyncBatchNorm
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
pelton.init()
model: nn.Module = nn.Sequential(
    nn.Unflatten(1, (1, 8, 8)),
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 10),
)
model = SyncBatchNorm.convert_sync_batchnorm(model)  # before it is wrapped
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model = pelton.wrap(model, optimizer, "bytegrad")
for images, digits in batches(pelton.rank(), pelton.world_size(), epochs=4):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), digits).backward()
    optimizer.step()

print(f"rank {pelton.rank()}: accuracy {accuracy(model):.3f}")
