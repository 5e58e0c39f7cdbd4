"""Windows of a GPU's tensors: in memory of the host that the GPU has mapped. Where there is no GPU, a device of PyTorch
stands in for one (accelerator.py), as in cases/gpu.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import accelerator
import pelton.bluefog.torch as bf
import torch
from pelton.errors import InvalidArgument, ResourceExhausted

from cases.checks import files_of_at_most, raises
from cases.gpu_neighbors import ring_of_gpus
from cases.registry import case

KIND = accelerator.gpus_kind()


@contextmanager
def _world() -> Iterator[tuple[int, int, torch.device]]:
    """As `ring_of_gpus`; no window is left."""
    with ring_of_gpus() as world:
        yield world
        bf.win_free()


@case(2, 3)
def a_get_reads_what_the_gpu_has_written() -> None:
    """The owner calls nothing of the window's between what it computes and the others' get."""
    with _world() as (rank, _, device):
        tensor = torch.full((5000,), float(rank), device=device)
        assert bf.win_create(tensor, "w", zero_init=True)
        for step in range(1, 6):
            bf.barrier()
            tensor.mul_(2).add_(1)
            torch.accelerator.synchronize(device)
            bf.barrier()
            bf.win_get("w")
            got = bf.win_update("w", 0.0, dict.fromkeys(bf.in_neighbor_ranks(), 1.0), clone=True)
            expected = sum(2.0**step * other + 2.0**step - 1 for other in bf.in_neighbor_ranks())
            assert got.device == device and torch.equal(got.cpu(), torch.full((5000,), expected)), (got, expected)


@case(2, 3)
def puts_and_updates_equal_those_of_the_cpu() -> None:
    with _world() as (rank, _, device):
        results = []
        for place in (torch.device("cpu"), device):
            name = f"on {place.type}"
            tensor = torch.arange(300.0, device=place).reshape(3, 100) + rank
            view = tensor[1]
            assert bf.win_create(tensor, name)
            bf.win_put(tensor * 2, name)
            bf.barrier()
            assert bf.win_update(name) is tensor
            bf.barrier()
            bf.win_accumulate(tensor, name, self_weight=0.5, dst_weights=dict.fromkeys(bf.out_neighbor_ranks(), 0.25))
            bf.barrier()
            bf.win_update_then_collect(name)
            bf.barrier()
            tensor.add_(1)
            bf.win_wait(bf.win_put_nonblocking(tensor + 1, name, self_weight=1.0))
            bf.barrier()
            other = bf.win_update(name, clone=True)
            assert torch.equal(view.cpu(), tensor[1].cpu())
            results.append((tensor.cpu(), other.cpu()))
            assert tensor.device == place and other.device == place
        for on_cpu, on_gpu in zip(*results):
            assert torch.equal(on_cpu, on_gpu)


@case(2)
def a_put_comes_after_what_made_its_tensor() -> None:
    with _world() as (rank, _, device):
        window = torch.zeros(1 << 16, device=device)
        assert bf.win_create(window, "w", zero_init=True)
        for step in range(1, 5):
            bf.win_put(torch.full((1 << 16,), float(step), device=device) * 2, "w")
            bf.barrier()
            result = bf.win_update("w", 0.0, {1 - rank: 1.0})
            assert result is window and torch.equal((result + 1).cpu(), torch.full((1 << 16,), 2.0 * step + 1))
            bf.barrier()


@case(2)
def a_part_of_other_memory_is_an_error_on_every_rank() -> None:
    with _world() as (rank, _, device):
        whole = torch.zeros(10, device=device)
        with raises(InvalidArgument, "part of other memory", "clone"):
            bf.win_create(whole[:4] if rank == 0 else torch.zeros(4, device=device), "w")
        assert bf.win_create(whole, "w")
        bf.win_free("w")
        assert bf.win_create(whole, "again") and torch.equal((whole + 1).cpu(), torch.ones(10))


@case(2, 3)
def no_memory_on_one_rank_is_an_error_on_every_rank() -> None:
    with _world() as (rank, _, device):
        tensor = torch.full((8 << 20,), float(rank), device=device)
        bf.barrier()
        with raises(ResourceExhausted, "rank 1", "33554432 bytes", "call win_create again on all ranks"):
            if rank == 1:
                with files_of_at_most(1 << 20):  # shared memory is one
                    bf.win_create(tensor, "w")
            else:
                bf.win_create(tensor, "w")
        assert torch.equal(tensor.cpu(), torch.full((8 << 20,), float(rank)))
        assert bf.win_create(tensor, "w")


@case(2)
def what_the_gpu_still_computes_is_waited_for() -> None:
    with _world() as (rank, _, device):
        window = torch.zeros(1 << 16, device=device)
        assert bf.win_create(window, "w", zero_init=True)
        for step in range(1, 9):
            window.add_(1)
            assert torch.equal(bf.win_update("w", 2.0, {}, clone=True).cpu(), torch.full((1 << 16,), 4.0 * step - 2))
            window.add_(1)
            bf.win_put(window, "w")
            bf.barrier()
            result = bf.win_update("w", 0.0, {1 - rank: 1.0}, clone=True)
            assert torch.equal(result.cpu(), torch.full((1 << 16,), 2.0 * step))
            bf.barrier()
