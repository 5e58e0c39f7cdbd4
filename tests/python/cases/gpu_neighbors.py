"""Operations between neighbors on tensors of a GPU equal those on the CPU. Where there is no GPU, a device of PyTorch
stands in for one (accelerator.py), as in cases/gpu.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import accelerator
import pelton.bluefog.torch as bf
import torch
from pelton.bluefog.torch.mpi_ops import pair_gossip
from pelton.errors import InvalidArgument

from cases.checks import raises
from cases.registry import case

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (17, 5), (1 << 13, 3))
KIND = accelerator.gpus_kind()


@contextmanager
def ring_of_gpus() -> Iterator[tuple[int, int, torch.device]]:
    """Rank, size and this rank's GPU; a ring is the topology."""
    bf.init(lambda size: bf.RingGraph(size))
    number = bf.rank() % torch.accelerator.device_count()
    torch.accelerator.set_device_index(number)
    yield bf.rank(), bf.size(), torch.device(KIND, number)
    bf.shutdown()


def _of_rank(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank * 7919 + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _check_same(on_gpu: torch.Tensor, on_cpu: torch.Tensor, device: torch.device) -> None:
    assert on_gpu.device == device and on_gpu.shape == on_cpu.shape and on_gpu.dtype == on_cpu.dtype
    assert torch.equal(on_gpu.cpu(), on_cpu), (on_gpu.cpu(), on_cpu)


@case(1, 2, 3)
def averages_equal_those_of_the_cpu_bit_by_bit() -> None:
    with ring_of_gpus() as (rank, size, device):
        for graph in (bf.RingGraph(size), bf.StarGraph(size), bf.ExponentialGraph(size)):
            for is_weighted in (False, True):
                assert bf.set_topology(graph, is_weighted)
                for dtype in DTYPES:
                    for shape in SHAPES:
                        tensor = _of_rank(rank, shape, dtype)
                        there = tensor.to(device)
                        _check_same(bf.neighbor_allreduce(there), bf.neighbor_allreduce(tensor), device)
                        _check_same(there, tensor, device)


@case(3)
def weights_travel_with_the_tensors_of_a_gpu() -> None:
    with ring_of_gpus() as (rank, size, device):
        others = [r for r in range(size) if r != rank]
        weights: dict[str, Any] = {
            "self_weight": 0.3,
            "src_weights": {r: 0.1 * (r + 1) for r in others},
            "dst_weights": {r: 1.0 + rank + 0.25 * r for r in others},
        }
        sources: dict[int, float] = {0: 2.0} if rank == 1 else {}
        one_way = {"self_weight": 0.5, "src_weights": sources, "dst_weights": [1] if rank == 0 else []}
        tensor = _of_rank(rank, (33,), torch.float32)
        there = tensor.to(device)
        for given in (weights, one_way):
            _check_same(bf.neighbor_allreduce(there, **given), bf.neighbor_allreduce(tensor, **given), device)
        if rank < 2:  # the third one has opened the GPU's queue with them
            _check_same(pair_gossip(there, 1 - rank), pair_gossip(tensor, 1 - rank), device)


@case(2)
def averages_come_after_what_made_their_tensors() -> None:
    """Without waiting for the stream: what is read too early is wrong where work on streams lags behind."""
    with ring_of_gpus() as (_, size, device):
        tensor = torch.ones(1 << 16, device=device)
        handles = []
        for _ in range(20):
            tensor = tensor * 2
            handles.append(bf.neighbor_allreduce_nonblocking(tensor))
        for step, handle in enumerate(handles):
            assert torch.equal((bf.synchronize(handle) + 1).cpu(), torch.full((1 << 16,), 2.0 ** (step + 1) + 1))
        strided = torch.arange(12.0, device=device).reshape(3, 4).t() + bf.rank()
        result = bf.neighbor_allreduce(strided)
        assert torch.equal(result.cpu(), torch.arange(12.0).reshape(3, 4).t() + (size - 1) / 2)


@case(2, 3)
def gathers_equal_those_of_the_cpu() -> None:
    with ring_of_gpus() as (rank, size, device):
        for rows in (2, rank, rank + 1):
            for dtype in (torch.float32, torch.int64, torch.bool):
                tensor = torch.arange(rows * 3).reshape(rows, 3).add(100 * rank).to(dtype)
                _check_same(bf.neighbor_allgather(tensor.to(device)), bf.neighbor_allgather(tensor), device)
        tensor = torch.full((rank + 1,), float(rank))
        sources, destinations = [(rank + 1) % size], [(rank - 1) % size]
        given: dict[str, Any] = {"src_ranks": sources, "dst_ranks": destinations}
        _check_same(bf.neighbor_allgather(tensor.to(device), **given), bf.neighbor_allgather(tensor, **given), device)
        handles = [bf.neighbor_allgather_nonblocking(tensor.to(device), name=f"{i}") for i in range(5)]
        for handle in handles:
            _check_same(bf.synchronize(handle), bf.neighbor_allgather(tensor), device)


@case(2)
def tensors_that_do_not_fit_are_an_error_at_both_ends() -> None:
    with ring_of_gpus() as (rank, _, device):
        with raises(InvalidArgument, "neighbor_allgather", "Float [2, 3]", "Float [2, 2]"):
            bf.neighbor_allgather(torch.ones(2, 3 - rank, device=device))
        with raises(InvalidArgument, "call it by different names"):
            bf.neighbor_allgather(torch.ones(2, device=device), name=f"of {rank}")
        assert bf.neighbor_allgather(torch.ones(2, device=device)).cpu().tolist() == [1, 1]
        with raises(InvalidArgument, "no weighted mean"):
            bf.neighbor_allreduce(torch.ones(2, dtype=torch.int64, device=device))


@case(2)
def another_order_is_an_error_that_names_both() -> None:
    with ring_of_gpus() as (rank, _, device):
        assert bf.neighbor_allreduce(torch.ones(2, device=device)).cpu().tolist() == [1, 1]
        with raises(InvalidArgument, "the name is", "'of 0'" if rank == 0 else "'of 1'", "same order"):
            bf.neighbor_allreduce(torch.ones(2, device=device), name=f"of {rank}")
        assert bf.neighbor_allreduce(torch.ones(2)).tolist() == [1, 1]  # the CPU's go on


@case(2)
def counts_that_differ_are_an_error_at_both_ends() -> None:
    with ring_of_gpus() as (rank, _, device), raises(InvalidArgument, "count is", "rank 0", "rank 1"):
        bf.neighbor_allreduce(torch.ones(2 + rank, device=device))
