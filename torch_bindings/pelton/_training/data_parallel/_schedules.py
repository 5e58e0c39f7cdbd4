"""Which schedule is the fastest between hosts for a model's buckets, as measured beside its training."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from pelton import _C, _log
from pelton._training._arguments import ReduceOp
from pelton._training._objects import text_of_rank0

_REPEATS = 3
# A schedule that is not faster by this much does not displace the one of the size below: noise would.
_MARGIN = 0.05


def measured_rows(inner: Any) -> str:
    """Rows of a table of schedules for the allreduce of a model's buckets. Collective, between steps.

    Args:
      inner: the object behind the wrapped model.

    Returns:
      The same on all ranks; "" where the ranks are on one host, between whose ranks no schedule is chosen, or work
      with daemons, whose communicators all go by PELTON_SCHEDULES.

    Raises:
      PeltonError: what the communication failed with.
    """
    session, ranks = inner._session, inner.process_group.ranks
    host_count = len({session.hosts[rank] for rank in ranks})
    names = [name for name in _C.schedules("allreduce", host_count) if name != "alone"]
    if host_count == 1 or len(names) < 2 or session.has_daemon:
        return ""
    sizes = _bucket_sizes(inner)
    if host_count < len(ranks):
        sizes = sizes[-1:]  # hosts exchange slices, whose sizes are the hierarchy's own choice
    seconds = {}
    for name in names:
        communicator = session.backend.communicator(ranks, "autotune", f"allreduce 0 0 {name}")
        try:
            seconds[name] = [_time(communicator, size) for size in sizes]
        finally:
            communicator.close()
    rows = "\n".join(rows_of(sizes, seconds))
    communicator = inner.process_group.get_global_communicator()
    if communicator.rank() == 0:
        _tell(inner.bagua_module_name, sizes, seconds)
    return text_of_rank0(communicator, rows.encode()).decode()


def rows_of(sizes: Sequence[int], seconds: dict[str, list[float]]) -> list[str]:
    """Rows for allreduce: between two sizes with different schedules the border is their geometric mean.

    Args:
      sizes: ascending. Units: bytes.
      seconds: as measured, by schedule and then by size.
    """
    chosen: list[str] = []
    for place in range(len(sizes)):
        best = min(seconds, key=lambda name: seconds[name][place])
        before = chosen[-1] if chosen else best
        is_faster = seconds[best][place] < seconds[before][place] * (1 - _MARGIN)
        chosen.append(best if is_faster else before)
    rows = []
    for place, schedule in enumerate(chosen):
        is_last = place + 1 == len(chosen)
        if is_last or chosen[place + 1] != schedule:
            border = 0 if is_last else math.isqrt(sizes[place] * sizes[place + 1])
            rows.append(f"allreduce 0 {border} {schedule}")
    return rows


def _bucket_sizes(inner: Any) -> list[int]:
    """The smallest, the middle and the largest, each once."""
    tensors = dict(inner._selected.trainable)
    sizes = sorted(
        {sum(tensors[name].numel() * tensors[name].element_size() for name in bucket) for bucket in _buckets(inner)}
    )
    return sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})


def _buckets(inner: Any) -> list[list[str]]:
    buckets: list[list[str]] = inner._live_rounds().buckets()
    return buckets


def _time(communicator: _C.Communicator, size: int) -> float:
    """The median of some allreduces, after one that does not count."""
    tensor = torch.zeros(max(1, size // 4), dtype=torch.float32, device="cpu")
    seconds = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        communicator.allreduce(tensor, tensor, ReduceOp.SUM)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def _tell(model: str, sizes: Sequence[int], seconds: dict[str, list[float]]) -> None:
    figures = "; ".join(
        f"{name}: " + ", ".join(f"{taken * 1e3:.2f} ms for {size} bytes" for size, taken in zip(sizes, times))
        for name, times in seconds.items()
    )
    _log.tell(logging.INFO, f"model '{model}': autotune has measured schedules between hosts: {figures}")
