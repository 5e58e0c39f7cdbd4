"""Times every operation on this rank; rank 0 prints "OPERATION BYTES SIDE MEDIAN_SECONDS" lines.

    rank.py --sizes BYTES... [--turns N] [--operations NAME...] [--region]

The sides take turns: one batch of Pelton's, one of gloo's, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import pelton
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from operations import operations
from pelton.torch_api.communication import destroy_process_group

SECONDS_PER_BATCH = 0.02
MOST_CALLS_PER_BATCH = 200


def _calls_per_batch(call: Callable[[], object]) -> int:
    """The same on all ranks: as many as rank 0 finds to fill a batch."""
    call()
    begin = time.perf_counter()
    call()
    wanted = SECONDS_PER_BATCH / max(time.perf_counter() - begin, 1e-7)
    calls = torch.tensor([min(max(int(wanted), 1), MOST_CALLS_PER_BATCH)])
    dist.broadcast(calls, 0)
    return int(calls)


def _time(call: Callable[[], object], calls: int) -> float:
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def _measure(sizes: list[int], turns: int, wanted: list[str], make: Callable[[int], torch.Tensor]) -> None:
    for size in sizes:
        for operation in operations(size, make):
            if wanted and operation.name not in wanted:
                continue
            sides = {"pelton": operation.pelton, "gloo": operation.torch}
            calls = {side: _calls_per_batch(call) for side, call in sides.items()}
            seconds: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(turns):
                for side, call in sides.items():
                    seconds[side].append(_time(call, calls[side]))
            if dist.get_rank() == 0:
                for side, values in seconds.items():
                    print(operation.name.replace(" ", "_"), size, side, f"{statistics.median(values):.9f}", flush=True)


def main() -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--operations", nargs="*", default=[])
    parser.add_argument("--region", action="store_true", help="tensors in Pelton's memory")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bagua.init_process_group()
    make = pelton.empty if options.region else torch.empty
    _measure(options.sizes, options.turns, options.operations, make)
    destroy_process_group()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
