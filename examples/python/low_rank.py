"""Gradients as factors of low rank: a hundredth of the bytes for large matrices.

pelton run -np 2 examples/python/low_rank.py
"""

from __future__ import annotations

import pelton.torch_api as bagua
import torch
from digits import accuracy, batches, make_model
from pelton.torch_api.algorithms.power_sgd import PowerSGDAlgorithm

torch.set_num_threads(1)
bagua.init_process_group()
rank, ranks = bagua.get_rank(), bagua.get_world_size()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# The first rounds go in full precision, because gradients change most then.
model = model.with_bagua([optimizer], PowerSGDAlgorithm(rank=4, start_round=50))
for images, digits in batches(rank, ranks, epochs=8):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), digits).backward()
    optimizer.step()

print(f"rank {rank}: accuracy {accuracy(model):.3f}")
bagua.destroy_process_group()
