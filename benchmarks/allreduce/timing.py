"""How every Python peer times its allreduce; timing.h does the same in C++. What is timed, and how often, comes from
run.py.
"""

import time
from collections.abc import Callable, Sequence

import torch


def time_cases(
    cases: Sequence[str],
    make: Callable[[int], torch.Tensor],
    allreduce: Callable[[torch.Tensor], object],
    *,
    prints: bool,
) -> None:
    """Prints "BYTES MEDIAN_SECONDS MIN_SECONDS" for each case; `make` gets a number of floats.

    Args:
      cases: "BYTES:ITERATIONS:BATCH": an allreduce of so many bytes, so often, of which so many are timed together.
    """
    torch.set_num_threads(1)
    for case in cases:
        size, iterations, batch = map(int, case.split(":"))
        tensor = make(size // 4).zero_()
        seconds = []
        for i in range(-(iterations // 10 + 2), iterations, batch):
            begin = time.perf_counter()
            for _ in range(batch):
                allreduce(tensor)
            if i >= 0:
                seconds.append((time.perf_counter() - begin) / batch)
        seconds.sort()
        if prints:
            print(size, f"{seconds[len(seconds) // 2]:.9f}", f"{seconds[0]:.9f}", flush=True)
