"""Hugging Face Accelerate's loop, with eight bits an element: only the first import differs from Accelerate's own.

pelton run -np 2 examples/python/accelerate_loop.py
"""

from __future__ import annotations

import torch
from digits import accuracy, batches, make_model
from pelton.accelerate import Accelerator

torch.set_num_threads(1)
accelerator = Accelerator(algorithm="bytegrad", cpu=True)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for images, digits in batches(accelerator.process_index, accelerator.num_processes, epochs=10):
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.cross_entropy(model(images), digits))
    accelerator.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()

print(f"rank {accelerator.process_index}: accuracy {accuracy(model):.3f}")
accelerator.end_training()
