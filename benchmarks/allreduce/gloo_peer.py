"""Times torch.distributed's allreduce over gloo: gloo_peer.py RANKS CASE..."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from timing import time_cases


def run_rank(rank: int, ranks: int, cases: list[str], store: str) -> None:
    """One rank of the world."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    time_cases(cases, torch.empty, dist.all_reduce, prints=rank == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        world = int(sys.argv[1])
        arguments = (world, sys.argv[2:], os.path.join(folder, "store"))
        mp.spawn(run_rank, arguments, nprocs=world)
