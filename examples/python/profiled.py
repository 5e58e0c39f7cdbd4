"""Where a step's time goes: torch.profiler shows each bucket, waiting and running, beside PyTorch's own work.

pelton run -np 2 examples/python/profiled.py
"""

from __future__ import annotations

import pelton.torch_api as bagua
import torch
from digits import accuracy, batches, make_model
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from torch.profiler import ProfilerActivity, profile, schedule

torch.set_num_threads(1)
bagua.init_process_group()
rank, ranks = bagua.get_rank(), bagua.get_world_size()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model = model.with_bagua([optimizer], GradientAllReduceAlgorithm())
# Ten steps after the first ten. `profiler.export_chrome_trace("trace.json")` writes them for chrome://tracing.
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=9, warmup=1, active=10, repeat=1)) as profiler:
    for images, digits in batches(rank, ranks, epochs=12):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), digits).backward()
        optimizer.step()
        profiler.step()

for row in profiler.key_averages():
    if rank == 0 and row.key.startswith("pelton:"):
        print(f"{row.count} times, {row.cpu_time:.0f} us each: {row.key}")
print(f"rank {rank}: accuracy {accuracy(model):.3f}")
bagua.destroy_process_group()
