"""What BlueFog's optimizers have a rank send in a step, counted where they call operations and windows, against the
formulas of docs/coming_from/bluefog.md. What one operation sends is held by the tests of `SentBytesOf`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pelton.bluefog.torch as bf
import torch
from pelton.bluefog.torch import _combining, _windows, mpi_ops
from pelton.bluefog.torch.optimizers import (
    CommunicationType,
    DistributedPullGetOptimizer,
    DistributedPushSumOptimizer,
)
from torch import nn

from cases.registry import case

STEPS = 6


@contextmanager
def _counted() -> Iterator[list[float]]:
    """The bytes of everything that goes out, and of what is got, within the block."""
    size, out, into = bf.size(), len(bf.out_neighbor_ranks()), len(bf.in_neighbor_ranks())
    counts: list[float] = []
    # Of an allreduce as SentBytesOf counts it; the tensor of the others goes to each neighbor.
    factors: list[tuple[Any, str, float]] = [
        (mpi_ops, "allreduce_nonblocking", 2 * (size - 1) / size),
        (_windows, "win_accumulate", out),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in factors]
    get, put, begin = _windows.win_get_nonblocking, _windows.put_all_nonblocking, _combining.begin_combining

    def counting_begin(*words: Any) -> Any:
        is_of_all = words[2].communication_type is CommunicationType.allreduce
        counts.append(words[3].gather().nbytes * (2 * (size - 1) / size if is_of_all else out))
        return begin(*words)

    def counting_puts(tensors: dict[str, torch.Tensor], *words: Any) -> Any:
        counts.append(sum(tensor.nbytes for tensor in tensors.values()) * out)
        return put(tensors, *words)

    def count(call: Any, factor: float) -> Any:
        def counting(tensor: torch.Tensor, *words: Any, **options: Any) -> Any:
            counts.append(tensor.nbytes * factor)
            return call(tensor, *words, **options)

        return counting

    def counting_get(name: str, *words: Any, **options: Any) -> Any:
        counts.append(_windows.win_update(name, 1.0, {}, clone=True).nbytes * into)
        return get(name, *words, **options)

    for (module, name, factor), (_, _, call) in zip(factors, before):
        setattr(module, name, count(call, factor))
    more: list[tuple[Any, str, Any]] = [
        (_windows, "win_get_nonblocking", counting_get),
        (_windows, "put_all_nonblocking", counting_puts),
        (_combining, "begin_combining", counting_begin),
    ]
    for module, name, counting in more:
        setattr(module, name, counting)
    try:
        yield counts
    finally:
        for module, name, call in before:
            setattr(module, name, call)
        _windows.win_get_nonblocking, _windows.put_all_nonblocking, _combining.begin_combining = get, put, begin


def _sent_by(make: Callable[[torch.optim.Optimizer, nn.Module], Any]) -> float:
    """By this rank in all steps."""
    net = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 10))
    optimizer = make(torch.optim.SGD(net.parameters(), lr=0.1), net)
    with _counted() as counts:
        for _ in range(STEPS):
            optimizer.zero_grad()
            net(torch.ones(1, 40)).sum().backward()
            optimizer.step()
    bf.barrier()
    if hasattr(optimizer, "unregister_window"):
        optimizer.unregister_window()
    return sum(counts)


@case(1, 2, 3, 4, 8)
def a_step_sends_what_its_formula_says() -> None:
    bf.init(bf.StarGraph)
    size, out, into = bf.size(), len(bf.out_neighbor_ranks()), len(bf.in_neighbor_ranks())
    weights = 4 * (40 * 30 + 30 + 30 * 10 + 10)
    combined = sum((4 * count + 63) // 64 * 64 for count in (40 * 30, 30, 30 * 10, 10))  # by places of 64 bytes
    everybody = 2 * (size - 1) / size
    neighbor, kind = bf.DistributedAdaptWithCombineOptimizer, CommunicationType.allreduce
    formulas: list[tuple[Any, float]] = [
        (neighbor, out * combined),
        (bf.DistributedAdaptThenCombineOptimizer, out * combined),
        (lambda o, net: neighbor(o, net, kind), everybody * combined),
        (lambda o, net: neighbor(o, net, num_steps_per_communication=2), out * combined / 2),
        (lambda o, net: neighbor(o, net, CommunicationType.empty), 0),
        (bf.DistributedGradientAllreduceOptimizer, everybody * (weights + 4 * 4)),  # and a mark for each of 4 gradients
        (bf.DistributedWinPutOptimizer, out * weights),
        (DistributedPullGetOptimizer, into * weights),
        (DistributedPushSumOptimizer, out * (weights + 4)),  # and its weight
    ]
    for number, (make, expected) in enumerate(formulas):
        found = _sent_by(make)
        assert abs(found - STEPS * expected) < 1e-6 * found + 1e-9, (number, found, STEPS * expected)
