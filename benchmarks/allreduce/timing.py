"""How every Python peer times its allreduce, so that figures compare."""

import time
from collections.abc import Callable, Sequence

import torch


def time_sizes(
    sizes: Sequence[int],
    make: Callable[[int], torch.Tensor],
    allreduce: Callable[[torch.Tensor], object],
    *,
    prints: bool,
) -> None:
    """Prints "BYTES MEDIAN_SECONDS MIN_SECONDS" for each size in bytes; `make` gets a number of floats."""
    torch.set_num_threads(1)
    for size in sizes:
        tensor = make(size // 4).zero_()
        iterations = min(max((1 << 29) // size, 7), 2000)
        seconds = []
        batch = 20 if size <= 65536 else 1
        for i in range(-(iterations // 10 + 2), iterations, batch):
            begin = time.perf_counter()
            for _ in range(batch):
                allreduce(tensor)
            if i >= 0:
                seconds.append((time.perf_counter() - begin) / batch)
        seconds.sort()
        if prints:
            print(size, f"{seconds[len(seconds) // 2]:.9f}", f"{seconds[0]:.9f}", flush=True)
