"""One bit for each element of the first moments, once the second ones have settled.

pelton run -np 2 examples/python/one_bit_adam.py
"""

from __future__ import annotations

import pelton.torch_api as bagua
import torch
from digits import accuracy, batches, make_model
from pelton.torch_api.algorithms.one_bit_adam import OneBitAdamAlgorithm, OneBitAdamOptimizer

torch.set_num_threads(1)
bagua.init_process_group()
rank, ranks = bagua.get_rank(), bagua.get_world_size()
model = make_model()
# The warm-up is plain Adam. Tiny second moments would make huge steps of what one bit says.
optimizer = OneBitAdamOptimizer(model.parameters(), lr=0.003, warmup_steps=100, variance_floor=0.01)
model = model.with_bagua([optimizer], OneBitAdamAlgorithm(optimizer, hierarchical=False))
for images, digits in batches(rank, ranks, epochs=8):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), digits).backward()
    optimizer.step()

print(f"rank {rank}: accuracy {accuracy(model):.3f}")
bagua.destroy_process_group()
