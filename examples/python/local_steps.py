"""Many steps alone, then an outer step together (DiLoCo): for links that are slow by any measure.

pelton run -np 2 examples/python/local_steps.py
"""

from __future__ import annotations

import pelton.torch_api as bagua
import torch
from digits import accuracy, batches, make_model
from pelton.torch_api.algorithms.diloco import DiLoCoAlgorithm

torch.set_num_threads(1)
bagua.init_process_group()
rank, ranks = bagua.get_rank(), bagua.get_world_size()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model = model.with_bagua([optimizer], DiLoCoAlgorithm(interval=8, outer_learning_rate=0.7, outer_momentum=0.5))
for images, digits in batches(rank, ranks, epochs=12):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), digits).backward()
    optimizer.step()

print(f"rank {rank}: accuracy {accuracy(model):.3f}")
bagua.destroy_process_group()
