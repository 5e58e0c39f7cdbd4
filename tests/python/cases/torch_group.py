"""What `init_process_group` makes of torch.distributed."""

from __future__ import annotations

import gc
import os
import weakref
from unittest import mock

import pelton.distributed._process_group as process_group
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from pelton._training import _session
from torch.utils.data import DistributedSampler

from cases.checks import raises, rank_and_size
from cases.registry import case


def _again(torch_distributed: bool | None = None) -> None:
    """Joins anew, not as the test harness has."""
    bagua.destroy_process_group()
    bagua.init_process_group(torch_distributed=torch_distributed)


@case(1, 2, 4)
def it_is_initialised_on_the_same_backend() -> None:
    rank, size = rank_and_size()
    _again()
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    assert dist.get_backend() == "pelton" or torch.cuda.device_count() > 0
    assert process_group._default is not None
    assert process_group._default.backend is _session.current().backend
    backend = weakref.ref(_session.current().backend)
    dist.barrier()
    bagua.destroy_process_group()
    assert not dist.is_initialized()
    assert process_group._worlds == []
    gc.collect()
    assert backend() is None, "its threads, sockets and memory are still there"


@case(4)
def its_results_are_pelton_s_bit_for_bit() -> None:
    rank, _ = rank_and_size()
    _again()
    values = torch.randn(100_003, generator=torch.Generator().manual_seed(rank)) * 10.0**rank
    ours, theirs = values.clone(), values.clone()
    bagua.allreduce_inplace(ours, op=bagua.ReduceOp.AVG)
    dist.all_reduce(theirs, dist.ReduceOp.AVG)
    assert torch.equal(ours, theirs)


@case(2)
def two_ranks_may_begin_with_a_message() -> None:
    rank, _ = rank_and_size()
    _again()
    tensor = torch.full((3,), float(rank))
    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    assert tensor.tolist() == [0, 0, 0]


@case(2)
def what_asks_torch_sees_the_job() -> None:
    rank, size = rank_and_size()
    _again()
    sampler: DistributedSampler[int] = DistributedSampler(range(10), shuffle=False)  # type: ignore[arg-type]
    assert list(sampler) == list(range(rank, 10, size))
    layer = torch.nn.SyncBatchNorm(3)
    with raises(ValueError, "SyncBatchNorm expected input tensor to be on GPU"):  # torch's: it has none for the CPU
        layer(torch.ones(4, 3))
    layer.eval()(torch.ones(4, 3))


@case(2)
def it_can_be_left_alone() -> None:
    _again(torch_distributed=False)
    assert not dist.is_initialized()
    with mock.patch.dict(os.environ, PELTON_TORCH_DISTRIBUTED="0"):
        _again()
    assert not dist.is_initialized()
    _again(torch_distributed=True)
    assert dist.is_initialized()


@case(2)
def the_user_may_end_it_and_begin_another() -> None:
    _again()
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    bagua.destroy_process_group()
    assert dist.get_backend() == "gloo"
    dist.destroy_process_group()


@case(2)
def one_that_is_there_stays() -> None:
    _rank, size = rank_and_size()
    bagua.destroy_process_group()
    for backend in ("gloo", "pelton"):
        dist.init_process_group(backend)
        bagua.init_process_group()
        assert dist.get_backend() == backend
        ours, theirs = torch.ones(3), torch.ones(3)
        bagua.allreduce_inplace(ours)
        dist.all_reduce(theirs)
        assert ours.tolist() == theirs.tolist() == [size] * 3
        bagua.destroy_process_group()
        dist.all_reduce(theirs)
        assert theirs.tolist() == [size * size] * 3
        dist.destroy_process_group()


@case(2)
def one_that_is_there_tells_the_place() -> None:
    rank, size = rank_and_size()
    bagua.destroy_process_group()
    dist.init_process_group("gloo")
    names = [name for name in os.environ if name.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "PELTON_"))]
    kept = {name: os.environ.pop(name) for name in names}
    try:
        bagua.init_process_group()
        assert (bagua.get_rank(), bagua.get_world_size()) == (rank, size)
        tensor = torch.tensor([float(rank)])
        bagua.allreduce_inplace(tensor)
        assert tensor.item() == 1
    finally:
        bagua.destroy_process_group()
        os.environ.update(kept)
        dist.destroy_process_group()


@case(2)
def no_port_is_opened_for_it() -> None:
    """Its ranks meet on the coordinator that is there: not a second server, nor a second connection to it."""

    def sockets() -> int:
        count = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
            except OSError:
                continue
        return count

    _again(torch_distributed=False)
    without = sockets()
    _again(torch_distributed=True)
    assert sockets() <= without
