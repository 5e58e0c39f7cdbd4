"""BlueFog's collectives and optimizers on tensors of a GPU equal those on the CPU. Where there is no GPU, a device of
PyTorch stands in for one (accelerator.py), as in cases/gpu.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import accelerator
import pelton.bluefog.torch as bf
import torch
from pelton.bluefog.common.util import env
from pelton.bluefog.torch.optimizers import CommunicationType
from pelton.errors import InvalidArgument
from torch import nn

from cases.bluefog_optimizers import loss_of, sgd
from cases.checks import raises
from cases.gpu_neighbors import KIND, ring_of_gpus
from cases.registry import case

STEPS = 3
# NCCL reduces all but int16, which goes by the host.
SUMMED = (torch.float16, torch.float32, torch.float64, torch.int16, torch.int32, torch.uint8, torch.bool)
MEANS = (torch.bfloat16, torch.float32, torch.complex64)
Make = Callable[[torch.optim.Optimizer, nn.Module], Any]


def _check_same(on_gpu: torch.Tensor, on_cpu: torch.Tensor, device: torch.device) -> None:
    assert on_gpu.device == device and on_gpu.shape == on_cpu.shape and on_gpu.dtype == on_cpu.dtype
    if KIND == accelerator.NAME:
        assert torch.equal(on_gpu.cpu(), on_cpu), (on_gpu.cpu(), on_cpu)
    else:  # NCCL adds in another order
        torch.testing.assert_close(on_gpu.cpu(), on_cpu)


def _of_rank(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(31 * bf.rank() + len(shape))
    return (torch.rand(shape, generator=generator) * 8).to(dtype)


@case(1, 2, 3)
def reductions_equal_those_of_the_cpu() -> None:
    with ring_of_gpus() as (_, _, device):
        for shape in ((), (0,), (17, 5), (1 << 13,)):
            for average, dtypes in ((False, SUMMED), (True, MEANS)):
                for dtype in dtypes:
                    tensor = _of_rank(shape, dtype)
                    there = tensor.to(device)
                    expected = bf.allreduce(tensor, average)
                    _check_same(bf.allreduce(there, average), expected, device)
                    _check_same(there, tensor, device)
                    assert bf.allreduce_(there, average) is there
                    _check_same(there, expected, device)
                    handle = bf.allreduce_nonblocking(tensor.to(device), average, name="one")
                    _check_same(bf.synchronize(handle), expected, device)
        whole = torch.zeros(4, 6, device=device)
        strided = whole[:, 1]
        strided.copy_(torch.arange(4.0))
        assert bf.synchronize(bf.allreduce_nonblocking_(strided, average=False)) is strided
        expected = torch.zeros(4, 6)
        expected[:, 1] = torch.arange(4.0) * bf.size()
        _check_same(whole + 0, expected, device)


@case(2, 3)
def broadcasts_and_gathers_equal_those_of_the_cpu() -> None:
    with ring_of_gpus() as (rank, size, device):
        for dtype in (torch.float32, torch.int16, torch.bool, torch.float8_e5m2):
            for root in range(size):
                tensor = _of_rank((7, 3), torch.float32).to(dtype)
                there = tensor.to(device)
                expected = bf.broadcast(tensor, root)
                results = [bf.broadcast(there, root), bf.synchronize(bf.broadcast_nonblocking(there, root, name="one"))]
                assert bf.broadcast_(there, root) is there
                for result in (*results, there):
                    assert result.device == device and torch.equal(result.cpu().float(), expected.float())
        for rows in (2, rank, 0):
            for dtype in (torch.float64, torch.int16, torch.bool):
                tensor = _of_rank((rows, 3), dtype)
                _check_same(bf.allgather(tensor.to(device)), bf.allgather(tensor), device)
        tensor = torch.full((rank + 1, 2), float(rank))
        handles = [bf.allgather_nonblocking(tensor.to(device) + i, name=f"{i}") for i in range(5)]
        for i, handle in enumerate(handles):
            _check_same(bf.synchronize(handle), bf.allgather(tensor + i), device)
        leaf = torch.ones(3, device=device, requires_grad=True)
        (bf.broadcast(leaf, 0) * (rank + 1)).sum().backward()
        assert leaf.grad is not None
        total = size * (size + 1) / 2 if rank == 0 else 0.0
        assert leaf.grad.cpu().tolist() == [total] * 3


@case(2)
def collectives_come_after_what_made_their_tensors() -> None:
    """Without waiting for the stream: what is read too early is wrong where work on streams lags behind. Collectives
    and averages of neighbors share the order of their calls."""
    with ring_of_gpus() as (rank, _, device):
        tensor = torch.ones(1 << 16, device=device)
        handles = []
        for step in range(12):
            tensor = tensor * 2
            begin = (bf.allreduce_nonblocking, bf.neighbor_allreduce_nonblocking)[step % 2]
            handles += [begin(tensor), bf.broadcast_nonblocking(tensor + rank, 1), bf.allgather_nonblocking(tensor[:3])]
        for number, handle in enumerate(handles):
            expected = 2.0 ** (number // 3 + 1) + (number % 3 == 1)
            assert bool(((bf.synchronize(handle) + 1).cpu() == expected + 1).all())


@case(2)
def tensors_that_cannot_be_gathered_are_an_error_on_all_ranks() -> None:
    with ring_of_gpus() as (rank, _, device):
        with raises(InvalidArgument, "allgather", "Float [2, 3]", "Float [2, 2]"):
            bf.allgather(torch.ones(2, 3 - rank, device=device))
        with raises(InvalidArgument, "the name is", "'of 0'" if rank == 0 else "'of 1'", "same order"):
            bf.allgather_nonblocking(torch.ones(2, device=device), name=f"of {rank}")
        with raises(InvalidArgument, "root_rank", "2"):
            bf.broadcast(torch.ones(2, device=device), 2)
        assert bf.allgather(torch.ones(2, device=device)).cpu().tolist() == [1] * 4
        with raises(InvalidArgument, "count is", "rank 0", "rank 1"):
            bf.allreduce(torch.ones(2 + rank, device=device))
        assert bf.allreduce(torch.ones(2)).tolist() == [1, 1]  # the CPU's go on


@case(4)
def machines_average_their_means() -> None:
    """Two machines of two ranks each."""
    with env(BLUEFOG_NODES_PER_MACHINE="2"), ring_of_gpus() as (rank, _, device):
        assert bf.set_machine_topology(bf.RingGraph(2))
        other = 1 - rank // 2
        weights: dict[str, Any] = {"src_machine_weights": {other: 0.25}, "dst_machine_weights": {other: 0.5}}
        for dtype in (torch.float16, torch.float64):
            tensor = _of_rank((300,), dtype)
            there = tensor.to(device)
            for given in ({}, {"self_weight": 0.5, **weights}):
                expected = bf.hierarchical_neighbor_allreduce(tensor, **given)
                _check_same(bf.hierarchical_neighbor_allreduce(there, **given), expected, device)
            handles = []
            for i in range(6):
                there = there * 1
                handles.append(bf.hierarchical_neighbor_allreduce_nonblocking(there + i))
                handles.append(bf.neighbor_allreduce_nonblocking(there + i))
            for i in range(6):
                _check_same(bf.synchronize(handles[2 * i]), bf.hierarchical_neighbor_allreduce(tensor + i), device)
                _check_same(bf.synchronize(handles[2 * i + 1]), bf.neighbor_allreduce(tensor + i), device)
            _check_same(
                bf.allreduce(there, is_hierarchical_local=True),
                bf.allreduce(tensor, is_hierarchical_local=True),
                device,
            )
        kind = CommunicationType.hierarchical_neighbor_allreduce
        _check_trains_alike(lambda o, net: bf.DistributedAdaptThenCombineOptimizer(o, net, kind), device)


@case(2)
def parameters_and_optimizers_are_brought_together() -> None:
    with ring_of_gpus() as (rank, _, device):
        places = (torch.device("cpu"), device)
        nets = [_net(place) for place in places]
        optimizers = [torch.optim.Adam(net.parameters(), lr=torch.tensor(0.1 + rank)) for net in nets]
        for net, optimizer in zip(nets, optimizers):
            if rank == 0:  # the other one has no state yet
                _loss(net, 0).backward()
                optimizer.step()
            bf.allreduce_parameters(net.parameters())
            bf.broadcast_optimizer_state(optimizer, 0)
        for on_cpu, on_gpu in zip(*(net.parameters() for net in nets)):
            _check_same(on_gpu.detach(), on_cpu.detach(), device)
            states = [optimizer.state[p] for optimizer, p in zip(optimizers, (on_cpu, on_gpu))]
            assert len(states[0]) == 3
            for name, value in states[0].items():
                _check_same(states[1][name], value, states[1][name].device)
                assert name == "step" or states[1][name].device == device
        assert abs(float(optimizers[1].param_groups[0]["lr"]) - 0.1) < 1e-6
        bf.broadcast_parameters(nets[1].state_dict(), 1)
        apart = [bf.allgather(p.detach()[None]) for p in nets[1].parameters()]
        assert all(torch.equal(p.cpu()[0], p.cpu()[1]) and p.device == device for p in apart)


def _net(place: torch.device) -> nn.Module:
    """Without shared weights, which `to` makes copies of on PyTorch's devices of other makers."""
    torch.manual_seed(bf.rank())  # nothing is broadcast
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7)).double().to(place)


def _loss(net: nn.Module, step: int) -> torch.Tensor:
    place = next(net.parameters()).device
    return loss_of(lambda inputs: net(inputs.to(place)).cpu(), bf.rank(), step)  # type: ignore[arg-type]


def _train(make: Make, place: torch.device) -> list[list[torch.Tensor]]:
    """The parameters after each step, on the CPU. Nobody is ahead of the others, so that windows repeat."""
    net = _net(place)
    optimizer = make(sgd(net), net)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        _loss(net, step).backward()
        optimizer.step()
        bf.barrier()
        seen.append([parameter.detach().cpu().clone() for parameter in net.parameters()])
        assert all(parameter.device == place for parameter in net.parameters())
    if hasattr(optimizer, "unregister_window"):
        optimizer.unregister_window()
    return seen


def _check_trains_alike(make: Make, device: torch.device) -> None:
    for on_cpu, on_gpu in zip(_train(make, torch.device("cpu")), _train(make, device)):
        for expected, actual in zip(on_cpu, on_gpu):
            _check_same(actual.to(device), expected, device)


def _in_step(optimizer: Any) -> Any:
    optimizer.force_barrier = True
    return optimizer


def _in_backward(optimizer: Any) -> Any:
    optimizer.steps_in_backward = True
    return optimizer


@case(2)
def optimizers_train_as_on_the_cpu() -> None:
    with env(BLUEFOG_NODES_PER_MACHINE="1"), ring_of_gpus() as (_, _, device):
        bf.set_machine_topology(bf.RingGraph(2))
        makes: list[Make] = [
            bf.DistributedGradientAllreduceOptimizer,
            lambda o, net: bf.DistributedAllreduceOptimizer(o, net.named_parameters()),
            lambda o, net: _in_backward(bf.DistributedAdaptThenCombineOptimizer(o, net)),
            lambda o, net: _in_step(bf.DistributedWinPutOptimizer(o, net)),
            lambda o, net: _in_step(bf.DistributedPullGetOptimizer(o, net)),
            bf.DistributedPushSumOptimizer,
        ]
        kinds = (kind for kind in CommunicationType if kind is not CommunicationType.empty)
        for kind in kinds:
            makes.append(lambda o, net, kind=kind: bf.DistributedAdaptWithCombineOptimizer(o, net, kind))  # type: ignore[misc]
            makes.append(lambda o, net, kind=kind: bf.DistributedAdaptThenCombineOptimizer(o, net, kind))  # type: ignore[misc]
        for make in makes:
            _check_trains_alike(make, device)


@case(2)
def combined_weights_lie_in_the_gpus_memory() -> None:
    """Nothing is copied: the weights change places with what was combined, and views go with them."""
    with ring_of_gpus() as (_, _, device):
        net = _net(device)
        optimizer = bf.DistributedAdaptThenCombineOptimizer(sgd(net), net)
        places: list[list[int]] = []
        for step in range(4):
            optimizer.zero_grad()
            _loss(net, step).backward()
            optimizer.step()
            places.append([parameter.data_ptr() for parameter in net.parameters()])
        assert places[0] == places[2] != places[1] == places[3], places
        view = next(net.parameters()).detach()
        _loss(net, 4).backward()
        optimizer.step()
        assert torch.equal(view.cpu(), next(net.parameters()).detach().cpu())
