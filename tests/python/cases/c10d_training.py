"""What PyTorch builds on torch.distributed, over Pelton: DDP, hooks, FSDP2, meshes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pelton.distributed import comm_hooks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from cases.checks import batch, gradients, rank_and_size, seeded, square_loss
from cases.registry import case
from cases.torch_world import beside_gloo, torch_world

STEPS = 4


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.BatchNorm1d(64), nn.Linear(64, 3))


def _train(model: Any, rank: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        square_loss(model, batch(rank, step, 8, 6)).backward()
        optimizer.step()


def _states_equal(first: nn.Module, second: nn.Module) -> None:
    for (name, ours), theirs in zip(first.state_dict().items(), second.state_dict().values()):
        assert torch.equal(ours, theirs), f"{name}: {(ours - theirs).abs().max()}"


# A sum of two has one order, so it has to agree with gloo's to the bit.
@case(2)
def ddp_trains_bit_equal_to_gloo() -> None:
    rank, _ = rank_and_size()
    with beside_gloo() as gloo:
        ours, theirs = (seeded(3 + rank, _model) for _ in range(2))
        _train(DistributedDataParallel(ours), rank)
        _train(DistributedDataParallel(theirs, process_group=gloo), rank)
        _states_equal(ours, theirs)


def _lies_in_shared_memory(tensor: torch.Tensor) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(address, 16) for address in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return "/memfd:" in line
    raise AssertionError("the tensor lies nowhere")


def _has_shared_buckets(rank: int, group: dist.ProcessGroup | None) -> bool:
    model = seeded(5, lambda: nn.Sequential(nn.Linear(6, 500), nn.Linear(500, 500), nn.Linear(500, 3)))
    _train(DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True), rank)
    places = {_lies_in_shared_memory(p.grad) for p in model.parameters() if p.grad is not None}
    assert len(places) == 1, "some buckets are shared"
    return places.pop()


@case(2)
def ddp_has_its_buckets_in_shared_memory_where_the_user_says_so() -> None:
    rank, _ = rank_and_size()
    with beside_gloo() as gloo:
        assert not _has_shared_buckets(rank, None)
        os.environ["DDP_DISABLE_COMM_MEM"] = "0"
        try:
            assert _has_shared_buckets(rank, None)
            assert not _has_shared_buckets(rank, gloo)
            ours, theirs = (seeded(3 + rank, _model) for _ in range(2))
            _train(DistributedDataParallel(ours), rank)
            _train(DistributedDataParallel(theirs, process_group=gloo), rank)
            _states_equal(ours, theirs)
        finally:
            del os.environ["DDP_DISABLE_COMM_MEM"]


@case(4)
def ddp_keeps_ranks_equal() -> None:
    rank, size = rank_and_size()
    with torch_world("cpu:pelton"):
        model = seeded(rank, _model)
        _train(DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1), rank)
        for parameter in model.parameters():
            everyones = [torch.zeros_like(parameter) for _ in range(size)]
            dist.all_gather(everyones, parameter.detach())
            assert all(torch.equal(other, parameter) for other in everyones)


@case(2)
def ddp_finds_unused_parameters_and_skips_rounds() -> None:
    rank, _ = rank_and_size()
    with beside_gloo() as gloo:
        results = []
        for group in (None, gloo):
            model = seeded(5, lambda: nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]))

            class Picks(nn.Module):
                def __init__(self, parts: nn.ModuleList) -> None:
                    super().__init__()
                    self.parts = parts

                def forward(self, inputs: torch.Tensor) -> Any:
                    return self.parts[rank](inputs)

            wrapped = DistributedDataParallel(Picks(model), process_group=group, find_unused_parameters=True)
            with wrapped.no_sync():
                square_loss(wrapped, batch(rank, 0, 8, 4)).backward()
            square_loss(wrapped, batch(rank, 1, 8, 4)).backward()
            results.append(gradients(model))
        for name, ours in results[0].items():
            assert torch.equal(ours, results[1][name]), name


@case(2)
def hooks_average_over_pelton_and_over_gloo() -> None:
    rank, _ = rank_and_size()
    with beside_gloo() as gloo:
        ours = comm_hooks.pelton_group(gloo)
        for hook, tolerance in (
            (comm_hooks.allreduce_hook, 0.0),
            (comm_hooks.fp16_compress_hook, 2e-3),
            (comm_hooks.bf16_compress_hook, 2e-2),
        ):
            plain = seeded(7, _model)
            _train(DistributedDataParallel(plain), rank)
            for group in (None, gloo, ours):
                model = seeded(7, _model)
                wrapped = DistributedDataParallel(model, process_group=gloo)
                wrapped.register_comm_hook(group, hook)
                _train(wrapped, rank)
                for (name, a), b in zip(model.named_parameters(), plain.parameters()):
                    assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), (hook, name, (a - b).abs().max())
                    assert tolerance > 0 or torch.equal(a, b), (hook, name)


@case(2)
def hooks_divide_behind_the_sum_under_any_name_of_the_backend() -> None:
    """Half of float16's smallest number is rounded to 0."""
    tiny = 2.0**-24
    with torch_world():
        for backend in ("pelton", "cpu:pelton"):
            group: Any = dist.new_group(backend=backend)
            model = nn.Linear(1, 1, bias=False)
            wrapped = DistributedDataParallel(model, process_group=group)
            wrapped.register_comm_hook(group, comm_hooks.fp16_compress_hook)
            wrapped(torch.full((1, 1), tiny)).sum().backward()
            assert model.weight.grad is not None and model.weight.grad.item() == tiny, backend


@case(2)
def powersgd_runs_as_over_gloo() -> None:
    """Its callbacks wait for futures that later callbacks complete."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    rank, _ = rank_and_size()
    with beside_gloo() as gloo:
        results = []
        for group in (None, gloo):
            model = seeded(9, lambda: nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
            wrapped = DistributedDataParallel(model, process_group=group)
            state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            for step in range(4):
                model.zero_grad()
                square_loss(wrapped, batch(rank, step, 4, 64)).backward()
            results.append(gradients(model))
        for name, ours in results[0].items():
            assert torch.allclose(ours, results[1][name], rtol=1e-4, atol=1e-5), name


@case(2)
def pytorchs_own_hooks_run() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    rank, _ = rank_and_size()
    with torch_world():
        for state, hook in (
            (None, default_hooks.allreduce_hook),
            (None, default_hooks.bf16_compress_hook),
        ):
            model = seeded(9, lambda: nn.Linear(32, 32))
            wrapped = DistributedDataParallel(model)
            wrapped.register_comm_hook(state, hook)
            for step in range(STEPS):
                square_loss(wrapped, batch(rank, step, 4, 32)).backward()
            assert model.weight.grad is not None
            copies = [torch.zeros(32, 32) for _ in range(2)]
            dist.all_gather(copies, model.weight.grad)
            assert torch.equal(*copies), hook


def _fsdp_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 5))


@case(2, 4)
def fsdp2_steps_like_one_process() -> None:
    rank, size = rank_and_size()
    with torch_world():
        mesh = init_device_mesh("cpu", (size,))
        model, alone = seeded(11, _fsdp_model), seeded(11, _fsdp_model)
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, alone)]
        for step in range(3):
            square_loss(model, batch(rank, step, 6, 8)).backward()
            everybodys = torch.cat([batch(r, step, 6, 8) for r in range(size)])
            square_loss(alone, everybodys).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for (name, ours), theirs in zip(model.named_parameters(), alone.parameters()):
            assert torch.allclose(ours.full_tensor(), theirs, atol=1e-6), name


@case(4)
def a_mesh_of_two_by_two() -> None:
    rank, size = rank_and_size()
    with torch_world():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        for name, peers in (("rows", [rank % 2, rank % 2 + 2]), ("columns", [rank // 2 * 2, rank // 2 * 2 + 1])):
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=mesh.get_group(name))
            assert tensor.item() == sum(peers), (name, rank)
            dist.broadcast(tensor.fill_(rank), src=peers[1], group=mesh.get_group(name))
            assert tensor.item() == peers[1], (name, rank)
        model = seeded(13, _fsdp_model)
        fully_shard(model, mesh=mesh)  # replicated over the rows, sharded over the columns
        alone = seeded(13, _fsdp_model)
        square_loss(model, batch(rank, 0, 6, 8)).backward()
        square_loss(alone, torch.cat([batch(r, 0, 6, 8) for r in range(size)])).backward()
        for (name, ours), theirs in zip(model.named_parameters(), alone.parameters()):
            assert ours.grad is not None
            assert theirs.grad is not None
            assert torch.allclose(ours.grad.full_tensor(), theirs.grad, atol=1e-6), name
