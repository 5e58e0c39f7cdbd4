"""A mixture of experts: four experts on each rank, two of all of which serve each image.

pelton run -np 2 examples/python/experts.py
"""

from __future__ import annotations

import pelton.torch_api as bagua
import torch
from digits import accuracy, batches
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from torch import nn


class Net(nn.Module):
    """The dense net of the other examples, with experts in place of its middle layer."""

    def __init__(self) -> None:
        """The dense layers are the same on every rank; experts are each rank's own, and begin apart."""
        super().__init__()
        torch.manual_seed(0)
        self.inward, self.outward = nn.Linear(64, 128), nn.Linear(128, 10)
        torch.manual_seed(1 + bagua.get_rank())
        expert = nn.Sequential(nn.Linear(128, 128), nn.ReLU())
        self.moe = bagua.moe.MoE(128, expert, num_local_experts=4, k=2, capacity_factor=1.5, eval_capacity_factor=2.0)
        self.balance = torch.zeros(())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the digits; what `balance` is then makes the experts' work even."""
        hidden = self.inward(images).relu()
        mixed, self.balance, _ = self.moe(hidden)
        scores: torch.Tensor = self.outward(hidden + mixed)
        return scores


torch.set_num_threads(1)
bagua.init_process_group()
rank, ranks = bagua.get_rank(), bagua.get_world_size()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
model = net.with_bagua([optimizer], GradientAllReduceAlgorithm())
for images, digits in batches(rank, ranks, epochs=8):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), digits) + 0.01 * net.balance
    loss.backward()
    optimizer.step()

print(f"rank {rank}: accuracy {accuracy(model):.3f}")
bagua.destroy_process_group()
