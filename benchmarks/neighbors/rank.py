"""A rank of the benchmark: `rank.py pelton|pelton-allreduce|gloo GRAPH BYTES:ITERATIONS...`, from Python.

Prints "BYTES MEDIAN_SECONDS" of the slowest rank; with the size "many", of 100 averages of 10 kB that are under way
together.
"""

import sys
import time
from collections.abc import Callable

import pelton.bluefog.torch as bf
import torch
import torch.distributed as dist

GRAPHS = {"ring": bf.RingGraph, "expo2": bf.ExponentialTwoGraph}


def many(tensors: list[torch.Tensor]) -> None:
    for handle in [bf.neighbor_allreduce_nonblocking(tensor) for tensor in tensors]:
        bf.synchronize(handle)


def median_of(call: Callable[[], object], iterations: int) -> float:
    bf.barrier()
    seconds = []
    for i in range(-iterations // 10 - 2, iterations):
        begin = time.perf_counter()
        call()
        if i >= 0:
            seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[len(seconds) // 2]


def gloo_mean(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor.div_(bf.size())


def call_of(peer: str, size: str) -> Callable[[], object]:
    if size == "many":
        tensors = [torch.ones(2500) for _ in range(100)]
        return lambda: many(tensors)
    tensor = torch.ones(max(int(size) // 4, 1))
    operations = {"pelton": bf.neighbor_allreduce, "pelton-allreduce": bf.allreduce, "gloo": gloo_mean}
    return lambda: operations[peer](tensor)


def main() -> None:
    peer, graph, *cases = sys.argv[1:]
    torch.set_num_threads(1)
    bf.init(GRAPHS[graph])
    if peer == "gloo":
        dist.init_process_group("gloo")
    for case in cases:
        size, _, iterations = case.partition(":")
        median = torch.tensor([median_of(call_of(peer, size), int(iterations))], dtype=torch.float64)
        slowest = bf.allgather(median).max().item()
        if bf.rank() == 0:
            print(size, f"{slowest:.9f}", flush=True)
    if peer == "gloo":
        dist.destroy_process_group()
    bf.shutdown()


if __name__ == "__main__":
    main()
