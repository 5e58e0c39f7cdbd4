"""How process groups of the backend "pelton" come and go."""

from __future__ import annotations

import datetime
from typing import Any

import pelton.distributed._process_group as process_group
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from pelton.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, PeltonError
from torch.distributed import HashStore  # type: ignore[attr-defined]  # exported on a condition

from cases.checks import raises, rank_and_size
from cases.registry import case
from cases.torch_world import torch_world


def _sum(group: Any = None) -> float:
    tensor = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


# Not in the job that the test harness has joined, and several times over.
@case(2, 4)
def it_meets_through_torchs_store() -> None:
    _rank, size = rank_and_size()
    bagua.destroy_process_group()
    for backend in ("pelton", "cpu:pelton", "pelton"):
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=30))
        assert _sum() == sum(range(1, size + 1))
        assert dist.get_backend_config() == "cpu:pelton"
        everybody = dist.new_group(backend="pelton")
        assert _sum(everybody) == sum(range(1, size + 1))
        assert len(process_group._worlds) == 1
        dist.destroy_process_group()
        assert process_group._worlds == []


@case(4)
def groups_of_some_ranks() -> None:
    rank, _size = rank_and_size()
    with torch_world():
        pair, trio = dist.new_group([1, 3]), dist.new_group([0, 1, 2])
        if rank in (1, 3):
            assert _sum(pair) == 6
        if rank in (0, 1, 2):
            assert _sum(trio) == 6
        if rank in (1, 3):
            dist.destroy_process_group(pair)
        assert _sum() == 10
        late = dist.new_group(timeout=datetime.timedelta(milliseconds=500))
        if rank != 3:
            with raises(PeltonError, "all_reduce of process group", "rank"):
                _sum(late)
        assert _sum() == 10, "another group's failure must not reach this one"


@case(2)
def beside_another_backend() -> None:
    _rank, _size = rank_and_size()
    bagua.destroy_process_group()
    dist.init_process_group("gloo")
    group = dist.new_group(backend="pelton")
    assert _sum(group) == 3
    again = dist.new_group([0, 1], backend="pelton")
    assert _sum(again) == 3
    assert len(process_group._worlds) == 2
    dist.destroy_process_group()
    assert process_group._worlds == []


@case(2)
def it_borrows_the_job_that_was_joined() -> None:
    with torch_world():
        assert process_group._default is not None
        tensor = torch.ones(3)
        bagua.allreduce_inplace(tensor)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [4, 4, 4]
    bagua.allreduce_inplace(torch.ones(3))


@case(2)
def what_it_refuses() -> None:
    rank, size = rank_and_size()
    with torch_world(), raises(InvalidArgument, "pg_options"):
        dist.new_group(pg_options=object())
    with raises(FailedPrecondition, f"rank {1 - rank} of {size}"):
        dist.init_process_group("pelton", store=HashStore(), rank=1 - rank, world_size=size)


@case(2)
def a_late_rank_is_named_by_barriers() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        group: Any = dist.group.WORLD
        group.monitored_barrier(datetime.timedelta(seconds=20))
        if rank == 0:
            short = datetime.timedelta(milliseconds=200)
            with raises(DeadlineExceeded, "Rank 1 failed to pass monitoredBarrier in 200 ms"):
                group.monitored_barrier(short)
            options: Any = dist.BarrierOptions()
            options.timeout, options.asyncOp = short, False
            with raises(DeadlineExceeded, "barrier of process group", "waiting for rank(s) 1"):
                group.barrier(options)
        else:
            with raises(PeltonError, "rank 0"):
                dist.recv(torch.zeros(1), 0)  # ends when rank 0 gives up


@case(2)
def a_wait_may_be_shorter_than_the_operation() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        tensor = torch.ones(2)
        if rank == 0:
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            with raises(DeadlineExceeded, "ALLREDUCE #1", "20 ms"):
                work.wait(datetime.timedelta(milliseconds=20))
            dist.send(torch.zeros(1), 1)
            work.wait()
        else:
            dist.recv(torch.zeros(1), 0)
            dist.all_reduce(tensor)
        assert tensor.tolist() == [2, 2]


@case(2)
def abort_ends_what_waits() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        if rank == 0:
            backend.abort()
        with raises(PeltonError, "rank 0"):
            dist.all_reduce(torch.ones(2))
