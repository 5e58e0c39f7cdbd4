"""A wrapped model under torch.compile: gradients go bucket by bucket all the same.

pelton run -np 2 examples/python/compiled.py
"""

from __future__ import annotations

import pelton.torch_api as bagua
import torch
from digits import accuracy, batches, make_model
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm

torch.set_num_threads(1)
bagua.init_process_group()
rank, ranks = bagua.get_rank(), bagua.get_world_size()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model = model.with_bagua([optimizer], GradientAllReduceAlgorithm())
# Without `backend` PyTorch makes kernels of its own of the graph, for which it starts a C++ compiler.
compiled = torch.compile(model, backend="aot_eager")
for images, digits in batches(rank, ranks, epochs=12):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(compiled(images), digits).backward()
    optimizer.step()

print(f"rank {rank}: accuracy {accuracy(model):.3f}")
bagua.destroy_process_group()
