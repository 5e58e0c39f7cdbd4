"""Weights averaged beside the training: a step waits for nobody.

pelton run -np 2 examples/python/asynchronous.py
"""

from __future__ import annotations

import pelton.torch_api as bagua
import torch
from digits import accuracy, batches, make_model
from pelton.torch_api.algorithms.async_model_average import AsyncModelAverageAlgorithm

torch.set_num_threads(1)
bagua.init_process_group()
rank, ranks = bagua.get_rank(), bagua.get_world_size()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model = model.with_bagua([optimizer], AsyncModelAverageAlgorithm(sync_interval_ms=50, warmup_steps=20))
for images, digits in batches(rank, ranks, epochs=8):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), digits).backward()
    optimizer.step()

# All ranks stop averaging and hold the same weights then.
model.bagua_algorithm.abort(model)
print(f"rank {rank}: accuracy {accuracy(model):.3f}")
bagua.destroy_process_group()
