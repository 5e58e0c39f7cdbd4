"""A collective of Pelton's, ready to be called, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pelton.torch_api as bagua
import torch
from pelton.torch_api import communication

SECONDS_PER_BATCH, MOST_CALLS = 0.05, 50


def call_of(kind: str, size: int) -> Callable[[], object]:
    """The collective on tensors whose whole, over all ranks where it has parts, is of `size` bytes."""
    world = bagua.get_world_size()
    part = torch.zeros(max(size // 4 // world, 1))
    whole = torch.zeros(part.numel() * world)
    calls: dict[str, Callable[[], object]] = {
        "allreduce": lambda: communication.allreduce_inplace(whole),
        "reduce": lambda: communication.reduce_inplace(whole, 0),
        "broadcast": lambda: communication.broadcast(whole, 0),
        "reduce_scatter": lambda: communication.reduce_scatter(whole, part),
        "allgather": lambda: communication.allgather(part, whole),
        "gather": lambda: communication.gather(part, whole, 0),
        "scatter": lambda: communication.scatter(whole, part, 0),
        "alltoall": lambda: communication.alltoall_inplace(whole),
    }
    return calls[kind]


def time_call(call: Callable[[], object]) -> float:
    """Seconds per call of a batch whose length rank 0 finds."""
    call()
    communication.barrier()
    began = time.perf_counter()
    call()
    wanted = torch.tensor([SECONDS_PER_BATCH / max(time.perf_counter() - began, 1e-7)])
    communication.broadcast(wanted, 0)
    calls = min(max(int(wanted), 1), MOST_CALLS)
    communication.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    communication.barrier()  # the time of the slowest rank
    return (time.perf_counter() - began) / calls
