"""Groups: new ones, torch's, their three communicators, ranks outside of them, their end, and models on them."""

from __future__ import annotations

import gc
import importlib
import socket
import threading
import time
from typing import Any

import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from pelton.errors import FailedPrecondition, InvalidArgument, PeltonError
from pelton.torch_api import communication
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from pelton.torch_api.communication import BaguaProcessGroup, CommMember, comm
from pelton.torch_api.contrib import LoadBalancingDistributedSampler
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported on a condition

from cases.checks import (
    assert_same,
    batch,
    gradients,
    local_gradients,
    mean_of,
    raises,
    rank_and_size,
    seeded,
    square_loss,
    wrap,
)
from cases.registry import case

SHAPE = (4, 6)


def _mlp() -> Any:
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def _sum_in(communicator: Any, value: float) -> float:
    tensor = torch.tensor([value])
    bagua.allreduce_inplace(tensor, comm=communicator)
    return tensor.item()


@case(1, 2, 4)
def groups_of_all_and_of_some() -> None:
    rank, size = rank_and_size()
    everyone = bagua.new_group()
    assert everyone.ranks == list(range(size))
    evens = bagua.new_group(list(range(0, size, 2))[::-1])
    assert evens.ranks == list(range(0, size, 2))
    last = bagua.new_group([size - 1])
    total = sum(range(size))
    assert _sum_in(everyone.get_global_communicator(), rank) == total
    for group in (last, evens):
        communicator = group.get_global_communicator()
        if rank not in group.ranks:
            assert communicator is CommMember.NON_COMM_MEMBER
            continue
        assert (communicator.rank(), communicator.nranks()) == (group.ranks.index(rank), len(group.ranks))
        assert _sum_in(communicator, rank) == sum(group.ranks)
    for same in (None, comm.WORLD, CommMember.WORLD):
        assert _sum_in(same, rank) == total
    assert communication.get_communicator(evens.group_name, "global") is evens.get_global_communicator()
    assert communication.get_communicator("default", "global").nranks() == size


@case(2, 4)
def groups_that_overlap_have_orders_of_their_own() -> None:
    """Each rank works in its groups in an order of its own choice, from which nothing can deadlock."""
    rank, size = rank_and_size()
    pairs = [bagua.new_group([first, (first + 1) % size]) for first in range(size)]
    mine = [pair for pair in pairs if rank in pair.ranks]
    for pair in mine:
        communicator = pair.get_global_communicator()
        peer = 1 - communicator.rank()
        got = torch.zeros(1)
        if communicator.rank() == 0:
            bagua.send(torch.tensor([float(rank)]), peer, communicator)
            bagua.recv(got, peer, communicator)
        else:
            bagua.recv(got, peer, communicator)
            bagua.send(torch.tensor([float(rank)]), peer, communicator)
        assert got.item() == pair.ranks[peer]


@case(1, 2, 4)
def ranks_of_one_host() -> None:
    rank, size = rank_and_size()
    group = bagua.new_group()
    intra, inter = group.get_intra_node_communicator(), group.get_inter_node_communicator()
    assert (intra.rank(), intra.nranks()) == (rank, size)
    assert intra is not group.get_global_communicator()
    if rank == 0:
        assert (inter.rank(), inter.nranks()) == (0, 1)
        assert _sum_in(inter, 5) == 5
    else:
        assert inter is CommMember.NON_COMM_MEMBER
    assert _sum_in(intra, rank) == sum(range(size))


@case(2)
def ranks_outside_of_a_group_return_at_once() -> None:
    rank, _ = rank_and_size()
    group = bagua.new_group([1])
    if rank == 1:
        assert _sum_in(group.get_global_communicator(), 3) == 3
        bagua.barrier()
        return
    outside = group.get_global_communicator()
    assert (outside.rank(), outside.nranks()) == (-1, 0)
    tensor = torch.full((4,), 7.0)
    for operation in (
        lambda: bagua.allreduce(tensor, tensor, comm=outside),
        lambda: bagua.allreduce_inplace(tensor, comm=outside),
        lambda: bagua.reduce(tensor, tensor, 0, comm=outside),
        lambda: bagua.reduce_inplace(tensor, 0, comm=outside),
        lambda: bagua.broadcast(tensor, 0, outside),
        lambda: bagua.allgather(tensor, tensor, outside),
        lambda: bagua.allgather_inplace(tensor, outside),
        lambda: bagua.reduce_scatter(tensor, tensor, comm=outside),
        lambda: bagua.reduce_scatter_inplace(tensor, comm=outside),
        lambda: bagua.gather(tensor, tensor, 0, outside),
        lambda: bagua.gather_inplace(tensor, 4, 0, outside),
        lambda: bagua.scatter(tensor, tensor, 0, outside),
        lambda: bagua.scatter_inplace(tensor, 4, 0, outside),
        lambda: bagua.alltoall(tensor, tensor, outside),
        lambda: bagua.alltoall_inplace(tensor, outside),
        lambda: bagua.alltoall_v_inplace(tensor, [4], [0], outside),
        lambda: bagua.send(tensor, 0, outside),
        lambda: bagua.recv(tensor, 0, outside),
        lambda: bagua.barrier(outside),
        lambda: communication.broadcast_coalesced([tensor], 0, outside),
        lambda: communication.allreduce_coalesced_inplace([tensor], comm=outside),
    ):
        operation()
    assert communication.broadcast_object("mine", 0, outside) == "mine"
    assert tensor.tolist() == [7.0] * 4
    with raises(InvalidArgument, "process_group", "this rank, 0", "[1]"):
        _mlp().with_bagua([], GradientAllReduceAlgorithm(), group)
    bagua.barrier()


@case(2, 4)
def the_end_of_a_group() -> None:
    _, size = rank_and_size()
    group = bagua.new_group()
    communicator = group.get_global_communicator()
    intra = group.get_intra_node_communicator()
    assert _sum_in(communicator, 1) == size
    bagua.barrier()
    bagua.destroy_process_group(group)
    bagua.destroy_process_group(group)
    for gone in (communicator, intra):
        with raises(FailedPrecondition, "destroyed"):
            bagua.barrier(gone)
    with raises(FailedPrecondition, group.group_name, "destroyed"):
        group.get_global_communicator()
    assert _sum_in(None, 1) == size
    old = communication._get_default_group()
    bagua.destroy_process_group(old)
    assert not bagua.is_initialized()
    bagua.destroy_process_group(group)
    bagua.init_process_group()
    with raises(FailedPrecondition, "destroyed"):
        old.get_global_communicator()
    assert _sum_in(None, 1) == size


@case(2)
def a_peer_of_a_destroyed_group_is_told() -> None:
    rank, _ = rank_and_size()
    bagua.destroy_process_group()
    bagua.init_process_group(timeout=2)
    group = bagua.new_group()
    communicator = group.get_global_communicator()
    if rank == 0:
        bagua.destroy_process_group(group)
        time.sleep(1.5)  # the other rank misses its deadline meanwhile
    else:
        with raises(PeltonError, "rank", "0"):
            bagua.barrier(communicator)
    bagua.barrier()


def _meet_as_torch() -> None:
    """torch.distributed over the same ranks, through a store whose address the group hands on."""
    rank, size = rank_and_size()
    port = 0
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    port = communication.broadcast_object(port)
    store = TCPStore("127.0.0.1", port, size, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


@case(2)
def looking_at_a_group_of_torch_makes_nobody_wait() -> None:
    """As a debugger does that shows an object's attributes, on one rank alone."""
    rank, size = rank_and_size()
    _meet_as_torch()
    try:
        world: Any = dist.group.WORLD
        if rank == 0:
            shown = {name: getattr(world, name) for name in dir(world) if name == "bagua_pg"}
            assert shown["bagua_pg"].ranks == [0, 1]
        bagua.barrier()
        assert _sum_in(world.bagua_pg.get_global_communicator(), 1) == size
    finally:
        dist.destroy_process_group()


@case(2)
def a_sampler_makes_nobody_wait() -> None:
    """The usual way to have rank 0 fetch the data first; a group of torch's has no communicator of ours yet."""
    rank, size = rank_and_size()
    _meet_as_torch()
    try:
        items: Any = range(4)
        for turn in range(size):
            if rank == turn:
                sampler = LoadBalancingDistributedSampler(items, float, shuffle=False, process_group=dist.group.WORLD)
            bagua.barrier()
        assert list(sampler) == [rank, rank + 2]
    finally:
        dist.destroy_process_group()


@case(2)
def the_methods_of_baguas_communicators() -> None:
    rank, size = rank_and_size()
    raw: Any = communication._get_default_group().get_global_communicator()
    tensor = torch.tensor([float(rank + 1)] * size)
    backend_tensor = tensor.ensure_bagua_tensor("one").bagua_backend_tensor()  # type: ignore[attr-defined]
    raw.allreduce_inplace(backend_tensor, bagua.ReduceOp.AVG)
    assert tensor.tolist() == [1.5, 1.5]
    raw.broadcast(backend_tensor, 0)
    raw.alltoall_inplace(backend_tensor)
    assert tensor.tolist() == [1.5, 1.5]
    swapped = [1.0, 1.0] if rank == 0 else [2.0, 2.0]
    for name, arguments, expected in (
        ("allgather_inplace", (), [1.0, 2.0]),
        ("alltoall_inplace", (), swapped),
        ("alltoall_v_inplace", ([1, 1], [0, 1, 2]), swapped),
        ("reduce_inplace", (0, bagua.ReduceOp.SUM), [2.0, 4.0] if rank == 0 else [1.0, 2.0]),
        ("reduce_scatter_inplace", (bagua.ReduceOp.MAX,), [1.0, 2.0]),
    ):
        values = torch.tensor([1.0, 2.0])
        getattr(raw, name)(values, *arguments)
        kept = slice(rank, rank + 1) if name == "reduce_scatter_inplace" else slice(None)
        assert values.tolist()[kept] == expected[kept], (name, values)
    own = torch.tensor([float(rank)] * (size if rank == 0 else 1))
    raw.gather_inplace(own, 1, 0)
    raw.scatter_inplace(own, 1, 0)
    if rank == 0:
        raw.send(own[1:], 1)
        assert own.tolist() == [0, 1]
    else:
        raw.recv(own, 0)
        assert own.tolist() == [1]


@case(2)
def another_thread_may_abort_a_communicator() -> None:
    rank, _ = rank_and_size()
    raw: Any = bagua.new_group().get_global_communicator()
    if rank == 0:
        aborting = threading.Thread(target=raw.abort)
        aborting.start()
        with raises(PeltonError, "rank 0"):
            raw.allreduce_inplace(torch.ones(3), bagua.ReduceOp.SUM)  # the other rank does not come
        aborting.join()
        assert raw.check_abort()
    bagua.barrier()


@case(2)
def offsets_may_end_with_the_total() -> None:
    rank, _ = rank_and_size()
    sent, got = torch.arange(4.0) + 10 * rank, torch.zeros(4)
    bagua.alltoall_v(sent, [2, 2], [0, 2, 4], got, [2, 2], [0, 2, 4])
    assert got.tolist() == ([0, 1, 10, 11] if rank == 0 else [2, 3, 12, 13])
    with raises(InvalidArgument, "send_displs has 1 entries"):
        bagua.alltoall_v(sent, [2, 2], [0], got, [2, 2], [0, 2])


@case(2, 4)
def groups_of_torch() -> None:
    # Torch's modules of functional collectives have the world of their import as a default argument, and keep it. Its
    # compiler imports them at the first training step, which must not be while this world is there.
    importlib.import_module("torch._dynamo")
    rank, size = rank_and_size()
    _meet_as_torch()
    try:
        world: Any = dist.group.WORLD
        assert world.bagua_patch() is world
        assert world.bagua_pg.ranks == list(range(size))
        assert world.bagua_pg is bagua.from_torch_group(world)
        assert _sum_in(world.bagua_get_global_communicator(), 1) == size
        assert _sum_in(world.bagua_get_intra_node_communicator(), 1) == size
        assert world.bagua_get_inter_node_communicator() is CommMember.NON_COMM_MEMBER or rank == 0
        half: Any = dist.new_group(list(range(size // 2)))
        if rank < size // 2:
            assert half.bagua_pg.ranks == list(range(size // 2))
            assert _sum_in(half.bagua_get_global_communicator(), 1) == size // 2
        else:
            outside = bagua.from_torch_group(half)  # torch's word for a group that this rank is not in
            assert outside.ranks == []
            assert outside.get_global_communicator() is CommMember.NON_COMM_MEMBER
        model: Any = seeded(rank, _mlp).with_bagua([], GradientAllReduceAlgorithm(), world)
        square_loss(model, batch(rank, 0, *SHAPE)).backward()
        assert_same(gradients(model), _mean_over(list(range(size))))
    finally:
        dist.destroy_process_group()
    del world, half
    gc.collect()
    assert len(communication._torch_to_bagua_pg_map) == 0


def _mean_over(ranks: list[int], average: bool = True, root: int = 0) -> dict[str, Any]:
    reference = seeded(root, _mlp)
    return mean_of([local_gradients(reference, batch(r, 0, *SHAPE)) for r in ranks], average)


@case(2, 4)
def models_on_groups() -> None:
    """Two halves of the job train at once, each for itself, flattened and not."""
    rank, size = rank_and_size()
    halves = [bagua.new_group(range(size // 2)), bagua.new_group(range(size // 2, size))]
    mine = halves[rank * 2 // size]
    for flatten in (True, False):
        model: Any = seeded(rank, _mlp)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.with_bagua([optimizer], GradientAllReduceAlgorithm(), mine, do_flatten=flatten)
        square_loss(model, batch(rank, 0, *SHAPE)).backward()
        assert_same(gradients(model), _mean_over(mine.ranks, root=mine.ranks[0]))
        for step in range(1, 4):
            optimizer.step()
            optimizer.zero_grad()
            square_loss(model, batch(rank, step, *SHAPE)).backward()
        everyones = torch.zeros(len(mine.ranks), 10, 6)
        bagua.allgather(model[0].weight, everyones, mine.get_global_communicator())
        assert all(torch.equal(row, everyones[0]) for row in everyones)
        assert model.bagua_ddp.statistics()["rounds"] == 4
    backend = communication.get_backend(model.bagua_module_name)
    assert backend.model_name == model.bagua_module_name
    backend.wait_pending_comm_ops()
    assert backend.statistics()["rounds"] == 4
    bagua.barrier()
    bagua.destroy_process_group(mine)
    with raises(FailedPrecondition, mine.group_name, "destroyed"):
        model(batch(rank, 0, *SHAPE))


@case(4)
def models_that_differ_inside_of_a_group() -> None:
    rank, size = rank_and_size()
    group = bagua.new_group([1, 3])
    if rank in group.ranks:
        with raises(InvalidArgument, "2.weight", "[3, 10]", "[6, 10]"):
            unlike: Any = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3 * (1 + rank // 3)))
            unlike.with_bagua([], GradientAllReduceAlgorithm(), group)
    model = wrap(seeded(rank, _mlp))
    square_loss(model, batch(rank, 0, *SHAPE)).backward()
    assert_same(gradients(model), _mean_over(list(range(size))))


@case(2)
def a_group_made_by_hand() -> None:
    rank, size = rank_and_size()
    group = BaguaProcessGroup(range(size), None, "by hand")
    assert _sum_in(group.get_global_communicator(), rank) == 1
    assert group.get_global_communicator() is group.get_global_communicator()
    assert group.get_global_communicator() is not communication._get_default_group().get_global_communicator()
