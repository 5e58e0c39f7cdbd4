"""A rank that times allreduces of Pelton's; rank 0 prints "BYTES SECONDS" lines: allreduce.py BYTES..."""

from __future__ import annotations

import sys

import pelton.torch_api as bagua
import torch
from timing import call_of, time_call


def main() -> None:
    """Runs on every rank."""
    torch.set_num_threads(1)
    bagua.init_process_group()
    for size in map(int, sys.argv[1:]):
        seconds = time_call(call_of("allreduce", size))
        if bagua.get_rank() == 0:
            print(size, seconds, flush=True)
    bagua.destroy_process_group()


if __name__ == "__main__":
    main()
