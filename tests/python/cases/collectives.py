"""The collectives of pelton.torch_api on CPU tensors."""

from __future__ import annotations

from typing import Any

import pelton
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from pelton.errors import InvalidArgument, PeltonError
from pelton.torch_api import ReduceOp
from pelton.torch_api.communication import BaguaProcessGroup

from cases.checks import assert_same_on_all_ranks, mean, raises, rank_and_size
from cases.registry import case

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.uint8,
)
COUNTS = (1, 7, 1000, 70001)


def _of_rank(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank * 100003 + count)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(0, 5, (count,), generator=generator).to(dtype)


@case(1, 2, 3, 4)
def allreduce_sums_in_rank_order() -> None:
    rank, size = rank_and_size()
    for dtype in DTYPES:
        for count in COUNTS:
            parts = [_of_rank(r, count, dtype) for r in range(size)]
            expected = mean(parts, average=False)
            result = torch.empty_like(parts[rank])
            bagua.allreduce(parts[rank], result)
            assert expected is not None
            assert torch.equal(result, expected), (dtype, count)
            bagua.allreduce_inplace(parts[rank])
            assert torch.equal(parts[rank], expected), (dtype, count)


@case(2, 3)
def allreduce_with_each_operation() -> None:
    rank, size = rank_and_size()
    parts = [_of_rank(r, 257, torch.float32) for r in range(size)]
    stacked = torch.stack(parts)
    for op, expected in (
        (ReduceOp.AVG, mean(parts)),
        (ReduceOp.MIN, stacked.min(0).values),
        (ReduceOp.MAX, stacked.max(0).values),
        (ReduceOp.PRODUCT, stacked.prod(0)),
        (dist.ReduceOp.MAX, stacked.max(0).values),
        (int(ReduceOp.MIN), stacked.min(0).values),
    ):
        result = torch.empty(257)
        bagua.allreduce(parts[rank], result, op)
        assert expected is not None
        torch.testing.assert_close(result, expected, msg=str(op))


@case(2, 4)
def memory_of_peltons_gives_the_same() -> None:
    rank, size = rank_and_size()
    for count in (5, 100000):
        own = pelton.empty(count)
        assert own.shape == (count,)
        assert own.dtype == torch.float32
        own.copy_(_of_rank(rank, count, torch.float32))
        bagua.allreduce_inplace(own)
        expected = mean([_of_rank(r, count, torch.float32) for r in range(size)], average=False)
        assert expected is not None
        assert torch.equal(own, expected)
    assert pelton.empty(2, 3, dtype=torch.int64).shape == pelton.empty((2, 3), dtype=torch.float64).shape
    assert pelton.empty(0).numel() == 0


@case(2, 3)
def broadcast_from_each_rank() -> None:
    rank, size = rank_and_size()
    for src in range(size):
        for dtype in DTYPES:
            tensor = _of_rank(rank, 3001, dtype)
            bagua.broadcast(tensor, src)
            assert torch.equal(tensor, _of_rank(src, 3001, dtype)), (src, dtype)


@case(2, 3)
def reduce_gives_the_result_to_one_rank() -> None:
    rank, size = rank_and_size()
    parts = [_of_rank(r, 999, torch.float32) for r in range(size)]
    expected = mean(parts, average=False)
    assert expected is not None
    for dst in range(size):
        result = torch.full((999,), -1.0)
        bagua.reduce(parts[rank], result, dst)
        assert torch.equal(result, expected if rank == dst else torch.full((999,), -1.0))
        inplace = parts[rank].clone()
        bagua.reduce_inplace(inplace, dst)
        if rank == dst:
            assert torch.equal(inplace, expected)


@case(2, 3)
def allgather_and_reduce_scatter() -> None:
    rank, size = rank_and_size()
    own = _of_rank(rank, 65, torch.float32)
    everyones = torch.empty(size, 65)
    bagua.allgather(own, everyones)
    assert torch.equal(everyones, torch.stack([_of_rank(r, 65, torch.float32) for r in range(size)]))
    inplace = torch.zeros(size, 65)
    inplace[rank] = own
    bagua.allgather_inplace(inplace)
    assert torch.equal(inplace, everyones)

    parts = [_of_rank(10 + r, size * 40, torch.float32) for r in range(size)]
    expected = mean(parts, average=False)
    assert expected is not None
    chunk = torch.empty(40)
    bagua.reduce_scatter(parts[rank], chunk)
    assert torch.equal(chunk, expected.view(size, 40)[rank])
    bagua.reduce_scatter_inplace(parts[rank])
    assert torch.equal(parts[rank].view(size, 40)[rank], expected.view(size, 40)[rank])


@case(2, 3)
def send_and_recv_around_a_ring() -> None:
    rank, size = rank_and_size()
    own, got = _of_rank(rank, 5000, torch.float64), torch.empty(5000, dtype=torch.float64)
    if rank % 2 == 0:
        bagua.send(own, (rank + 1) % size)
        bagua.recv(got, (rank - 1) % size)
    else:
        bagua.recv(got, (rank - 1) % size)
        bagua.send(own, (rank + 1) % size)
    assert torch.equal(got, _of_rank((rank - 1) % size, 5000, torch.float64))
    bagua.barrier()  # a rank that leaves now would end what is still under way between the others


@case(2)
def tensors_that_are_not_contiguous() -> None:
    rank, size = rank_and_size()
    parts = [_of_rank(r, 60, torch.float32).view(6, 10).t() for r in range(size)]
    expected = parts[0] + parts[1]
    target = torch.zeros(20, 6)[::2]
    bagua.allreduce(parts[rank], target)
    assert torch.equal(target, expected)
    inplace = parts[rank].clone(memory_format=torch.preserve_format)
    assert not inplace.is_contiguous()
    bagua.allreduce_inplace(inplace)
    assert torch.equal(inplace, expected)
    strided = torch.zeros(8, 4)[:, ::2]
    strided.fill_(rank)
    bagua.broadcast(strided, 1)
    assert torch.equal(strided, torch.ones(8, 2))


@case(2)
def parameters_that_require_gradients() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    bagua.allreduce_inplace(parameter)
    assert parameter.tolist() == [2.0, 2.0, 2.0]
    assert parameter.grad_fn is None


@case(2, 4)
def barrier_and_many_small_calls() -> None:
    rank, size = rank_and_size()
    tensor = torch.ones(16)
    for i in range(300):
        tensor.fill_(rank + i)
        bagua.allreduce_inplace(tensor)
        assert tensor[0].item() == sum(range(size)) + size * i
    bagua.barrier()


@case(2)
def empty_tensors() -> None:
    tensor = torch.empty(0)
    bagua.allreduce_inplace(tensor)
    bagua.broadcast(tensor)


@case(3)
def a_group_of_some_ranks() -> None:
    rank, _ = rank_and_size()
    if rank == 1:
        bagua.barrier()  # it stays: who leaves the job ends the openings that are under way
        return
    communicator = BaguaProcessGroup([0, 2], None, "ends").get_global_communicator()
    assert (communicator.rank(), communicator.nranks()) == (rank // 2, 2)
    tensor = torch.full((4,), float(rank))
    bagua.allreduce_inplace(tensor, comm=communicator)
    assert tensor.tolist() == [2.0] * 4
    bagua.broadcast(tensor.fill_(rank), 1, communicator)
    assert tensor.tolist() == [2.0] * 4
    bagua.barrier()


@case(2)
def shapes_that_differ_between_ranks() -> None:
    rank, _ = rank_and_size()
    with raises(PeltonError, "4", "5"):
        bagua.allreduce_inplace(torch.ones(4 + rank))


@case(2)
def dtypes_that_differ_between_ranks() -> None:
    rank, _ = rank_and_size()
    with raises(PeltonError, "float32", "float64"):
        bagua.allreduce_inplace(torch.ones(4, dtype=torch.float64 if rank else torch.float32))


@case(2)
def operations_that_differ_between_ranks() -> None:
    rank, _ = rank_and_size()
    with raises(PeltonError):
        if rank:
            bagua.broadcast(torch.ones(4))
        else:
            bagua.allreduce_inplace(torch.ones(4))


@case(2)
def arguments_that_are_wrong() -> None:
    _, size = rank_and_size()
    wrong: Any
    with raises(InvalidArgument, "allreduce", "2 elements", "recv_tensor 3"):
        bagua.allreduce(torch.ones(2), torch.ones(3))
    with raises(InvalidArgument, "torch.float32", "torch.int64"):
        bagua.allreduce(torch.ones(2), torch.ones(2, dtype=torch.int64))
    with raises(InvalidArgument, "src=2"):
        bagua.broadcast(torch.ones(2), size)
    with raises(InvalidArgument, "dst=-1"):
        bagua.send(torch.ones(2), -1)
    with raises(InvalidArgument, "op='MEAN'"):
        wrong = "MEAN"
        bagua.allreduce_inplace(torch.ones(2), wrong)
    with raises(InvalidArgument, "op="):
        bagua.allreduce_inplace(torch.ones(2), 5)
    with raises(InvalidArgument, "tensor: is on device meta"):
        bagua.allreduce_inplace(torch.ones(2, device="meta"))
    with raises(InvalidArgument, "to_dense"):
        bagua.broadcast(torch.eye(2).to_sparse())
    with raises(InvalidArgument, "list"):
        wrong = [1.0]
        bagua.broadcast(wrong)
    with raises(InvalidArgument, "dtype", "ComplexHalf"):
        bagua.allreduce_inplace(torch.ones(2, dtype=torch.complex32))
    with raises(InvalidArgument, "3 elements", "2 ranks"):
        bagua.allgather_inplace(torch.ones(3))
    with raises(InvalidArgument, "comm="):
        wrong = "world"
        bagua.barrier(wrong)
    with raises(InvalidArgument, "-1"):
        pelton.empty(-1)
    tensor = torch.ones(3)  # and after all that, everything still works
    bagua.allreduce_inplace(tensor)
    assert tensor.tolist() == [2.0] * 3
    assert_same_on_all_ranks([tensor])


@case(2)
def an_aborted_communicator() -> None:
    communicator = BaguaProcessGroup([0, 1], None, "default").get_global_communicator()
    assert not communicator.check_abort()
    communicator.abort()
    assert communicator.check_abort()
    with raises(PeltonError):
        bagua.allreduce_inplace(torch.ones(2))


@case(1, 2)
def what_the_environment_says() -> None:
    rank, size = rank_and_size()
    assert bagua.is_initialized()
    assert (bagua.get_local_rank(), bagua.get_local_size()) == (rank, size)
    with raises(RuntimeError, "already"):
        bagua.init_process_group()
    bagua.destroy_process_group()
    bagua.destroy_process_group()
    assert not bagua.is_initialized()
    with raises(RuntimeError, "init_process_group"):
        bagua.barrier()
    bagua.init_process_group(timeout=20)
    bagua.barrier()
