"""Times torch.distributed's allreduce over gloo: gloo_peer.py RANKS BYTES..."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def iterations_of(size: int) -> int:
    """As many as every peer does."""
    return min(max((1 << 29) // size, 7), 2000)


def run_rank(rank: int, ranks: int, sizes: list[int], store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    for size in sizes:
        tensor = torch.zeros(size // 4)
        iterations = iterations_of(size)
        seconds = []
        batch = 20 if size <= 65536 else 1
        for i in range(-(iterations // 10 + 2), iterations, batch):
            begin = time.perf_counter()
            for _ in range(batch):
                dist.all_reduce(tensor)
            if i >= 0:
                seconds.append((time.perf_counter() - begin) / batch)
        seconds.sort()
        if rank == 0:
            print(size, f"{seconds[len(seconds) // 2]:.9f}", f"{seconds[0]:.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        world = int(sys.argv[1])
        arguments = (world, [int(size) for size in sys.argv[2:]], os.path.join(folder, "store"))
        mp.spawn(run_rank, arguments, nprocs=world)
