"""A trainer on a stream of its own, and a thread of Pelton's that works on the same tensors. Where there is no GPU, a
device of PyTorch stands in for one (accelerator.py), whose work comes late.
"""

from __future__ import annotations

from typing import Any

import accelerator
import pelton
import torch
from pelton.torch_api.algorithms.async_model_average import AsyncModelAverageAlgorithm
from torch import nn

from cases.checks import assert_same, batch, seeded
from cases.registry import case

STEPS = 30


def _train(algorithm: AsyncModelAverageAlgorithm | None) -> dict[str, torch.Tensor]:
    """The weights after some steps on a stream that is not the device's own."""
    device = torch.device(accelerator.gpus_kind(), 0)
    torch.accelerator.set_device_index(0)
    # One parameter: it is what a step writes to last, and what the other thread comes to first.
    model: Any = seeded(0, lambda: nn.Linear(8, 4, bias=False)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if algorithm is not None:
        model = pelton.wrap(model, optimizer, algorithm)
    before = torch.accelerator.current_stream(device)
    stream = torch.Stream(device)
    stream.wait_stream(before)
    torch.accelerator.set_stream(stream)
    try:
        for step in range(STEPS):
            optimizer.zero_grad()
            model(batch(0, step, 3, 8).to(device)).square().mean().backward()
            optimizer.step()
        stream.synchronize()
    finally:
        torch.accelerator.set_stream(before)
    if algorithm is not None:
        model.bagua_algorithm.abort(model)
    return {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}


@case(1)
def averaging_works_on_the_stream_that_training_is_on() -> None:
    """A single rank's average adds zeros: a step that is lost, or half of it, is all that could differ."""
    assert_same(_train(AsyncModelAverageAlgorithm(sync_interval_ms=0)), _train(None))
