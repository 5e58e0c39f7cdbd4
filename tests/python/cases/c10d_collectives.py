"""torch.distributed over Pelton: every operation against gloo's results."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from pelton.errors import InvalidArgument, PeltonError, Unsupported

from cases.checks import raises, rank_and_size
from cases.registry import case
from cases.torch_world import beside_gloo, torch_world

WORLDS = (1, 2, 4)
Op = dist.ReduceOp
# What gloo knows too. Integers small enough that no order of adding matters.
REDUCED = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


def _values(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def _same(run: Callable[[Any], list[torch.Tensor]], gloo: Any) -> None:
    """`run` gives the same tensors with gloo's group and with Pelton's."""
    expected, found = run(gloo), run(dist.group.WORLD)
    assert len(found) == len(expected)
    for i, (theirs, ours) in enumerate(zip(expected, found)):
        assert ours.dtype == theirs.dtype, i
        assert torch.equal(ours, theirs), (i, ours, theirs)


@case(*WORLDS)
def all_reduce_like_gloo() -> None:
    rank, _ = rank_and_size()
    with beside_gloo() as gloo:
        for dtype in REDUCED:
            for op in (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX):

                def reduced(group: Any, dtype: torch.dtype = dtype, op: Any = op) -> list[torch.Tensor]:
                    tensor = _values(rank, 3, 5, dtype=dtype)
                    dist.all_reduce(tensor, op, group)
                    return [tensor]

                _same(reduced, gloo)
        for op in (Op.BAND, Op.BOR, Op.BXOR):

            def combined(group: Any, op: Any = op) -> list[torch.Tensor]:
                tensor = _values(rank, 9, dtype=torch.int32)
                dist.all_reduce(tensor, op, group)
                return [tensor]

            _same(combined, gloo)


@case(2, 4)
def all_reduce_of_what_gloo_does_not_offer() -> None:
    rank, size = rank_and_size()
    with torch_world():
        mean = torch.full((5,), float(rank))
        dist.all_reduce(mean, Op.AVG)
        assert torch.equal(mean, torch.full((5,), sum(range(size)) / size))
        numbers = torch.full((3,), complex(rank, 1))
        dist.all_reduce(numbers)
        assert torch.equal(numbers, torch.full((3,), complex(sum(range(size)), size)))
        flags = torch.tensor([rank == 0, False])
        dist.all_reduce(flags, Op.BOR)
        assert flags.tolist() == [True, False]
        with raises(Unsupported, "PREMUL_SUM"):
            dist.all_reduce(mean, dist._make_nccl_premul_sum(2.0))  # type: ignore[attr-defined]


@case(2)
def tensors_that_are_not_contiguous() -> None:
    rank, size = rank_and_size()
    with torch_world():
        whole = torch.arange(24.0).view(4, 6) + rank
        expected = sum(torch.arange(24.0).view(4, 6).t() + r for r in range(size))
        view = whole.t()
        dist.all_reduce(view)
        assert torch.equal(view, torch.as_tensor(expected))
        columns = torch.zeros(6, 2)
        source = torch.full((6,), float(rank))
        dist.all_gather([columns[:, 0], columns[:, 1]], source)
        assert torch.equal(columns, torch.tensor([[0.0, 1.0]] * 6))
        imaginary = torch.full((2,), complex(0, rank + 1)).imag
        dist.broadcast(imaginary, 1)
        assert imaginary.tolist() == [2, 2]
        empty, scalar = torch.zeros(0), torch.tensor(1.0)
        dist.all_reduce(empty)
        dist.all_reduce(scalar)
        assert scalar.item() == size


@case(*WORLDS)
def rooted_operations_like_gloo() -> None:
    rank, size = rank_and_size()
    root = size - 1

    def rooted(group: Any) -> list[torch.Tensor]:
        sent, summed, part = _values(rank, 7), _values(rank, 7), torch.zeros(3)
        dist.broadcast(sent, root, group)
        dist.reduce(summed, root, group=group)
        gathered = [torch.zeros(7) for _ in range(size)] if rank == root else None
        dist.gather(_values(rank, 7), gathered, root, group)
        parts = [_values(10 + r, 3) for r in range(size)] if rank == root else None
        dist.scatter(part, parts, root, group)
        return [sent, *([summed] if rank == root else []), *(gathered or []), part]

    with beside_gloo() as gloo:
        _same(rooted, gloo)


@case(*WORLDS)
def gathering_and_scattering_like_gloo() -> None:
    rank, size = rank_and_size()

    def exchanged(group: Any) -> list[torch.Tensor]:
        everyones = [torch.zeros(2, 3) for _ in range(size)]
        dist.all_gather(everyones, _values(rank, 2, 3), group)
        whole = torch.zeros(size * 2, 3)
        dist.all_gather_into_tensor(whole, _values(rank, 2, 3), group)
        part = torch.zeros(2, 3)
        dist.reduce_scatter_tensor(part, _values(rank, size * 2, 3), group=group)
        pieces = torch.zeros(size * 2, 3)
        dist.all_to_all_single(pieces, _values(rank, size * 2, 3), group=group)
        return [*everyones, whole, part, pieces]

    with beside_gloo() as gloo:
        _same(exchanged, gloo)
        part = torch.zeros(4)
        parts = [_values(rank * 10 + r, 4) for r in range(size)]
        dist.reduce_scatter(part, parts)
        assert torch.equal(part, torch.stack([_values(r * 10 + rank, 4) for r in range(size)]).sum(0))


@case(2, 4)
def uneven_lists_and_splits() -> None:
    rank, size = rank_and_size()
    with beside_gloo() as gloo:
        gathered = [torch.zeros(r + 1) for r in range(size)]
        dist.all_gather(gathered, _values(rank, rank + 1))
        assert all(torch.equal(gathered[r], _values(r, r + 1)) for r in range(size))
        part = torch.zeros(rank + 1)
        dist.reduce_scatter(part, [torch.full((r + 1,), float(rank + r)) for r in range(size)])
        assert torch.equal(part, torch.full((rank + 1,), float(sum(range(size)) + size * rank)))

        def split(group: Any) -> list[torch.Tensor]:
            # Rank i sends i + j rows to rank j.
            mine = [rank + r for r in range(size)]
            output = torch.zeros(sum(mine), 2)
            dist.all_to_all_single(output, _values(rank, sum(mine), 2), mine, mine, group)
            return [output]

        _same(split, gloo)
        received = [torch.zeros(rank + r, dtype=torch.int32) for r in range(size)]
        dist.all_to_all(received, [torch.full((rank + r,), rank, dtype=torch.int32) for r in range(size)])
        assert all(torch.equal(received[r], torch.full((rank + r,), r, dtype=torch.int32)) for r in range(size))


@case(2)
def types_that_are_only_moved() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        for dtype in (torch.float8_e4m3fn, torch.uint16):
            tensor = torch.tensor([1, 2, 3]).to(dtype) if rank == 0 else torch.zeros(3, dtype=dtype)
            dist.broadcast(tensor, 0)
            assert tensor.view(torch.uint8).tolist() == torch.tensor([1, 2, 3]).to(dtype).view(torch.uint8).tolist()
            with raises(InvalidArgument, "all_reduce", "cannot be communicated"):
                dist.all_reduce(tensor)


@case(2, 4)
def coalesced_operations() -> None:
    rank, size = rank_and_size()
    group: Any = None
    with torch_world():
        tensors = [torch.full((n + 1,), float(rank)) for n in range(300)]  # more than a communicator holds
        with dist._coalescing_manager(group):  # type: ignore[attr-defined]
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert all(torch.equal(t, torch.full((n + 1,), float(sum(range(size))))) for n, t in enumerate(tensors))
        wholes = [torch.zeros(size * (n + 1)) for n in range(3)]
        with dist._coalescing_manager(group):  # type: ignore[attr-defined]
            for n, whole in enumerate(wholes):
                dist.all_gather_into_tensor(whole, torch.full((n + 1,), float(rank)))
        assert all(w.view(size, -1)[:, 0].tolist() == list(range(size)) for w in wholes)
        parts = [torch.zeros(n + 1) for n in range(3)]
        with dist._coalescing_manager(group, async_ops=True) as pending:  # type: ignore[attr-defined]
            for n, part in enumerate(parts):
                dist.reduce_scatter_tensor(part, torch.full((size * (n + 1),), float(rank)))
        pending.wait()
        assert all(torch.equal(p, torch.full((n + 1,), float(sum(range(size))))) for n, p in enumerate(parts))


@case(2, 4)
def messages() -> None:
    rank, size = rank_and_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    with torch_world():
        received = torch.zeros(3)
        work = dist.irecv(received, left)
        dist.send(torch.full((3,), float(rank)), right)
        assert work is not None
        work.wait()
        assert received.tolist() == [left] * 3
        first, second = torch.zeros(2), torch.zeros(2)
        pending = [dist.isend(torch.full((2,), float(tag)), right, tag=tag) for tag in (1, 2)]
        dist.recv(second, left, tag=2)
        dist.recv(first, left, tag=1)
        assert (first[0].item(), second[0].item()) == (1, 2)
        swapped = torch.zeros(4)
        batch = [dist.P2POp(dist.isend, torch.full((4,), 5.0), right), dist.P2POp(dist.irecv, swapped, left)]
        for request in [*pending, *dist.batch_isend_irecv(batch)]:
            assert request is not None
            request.wait()
        assert swapped.tolist() == [5.0] * 4


@case(2)
def asynchronous_work() -> None:
    rank, size = rank_and_size()
    with torch_world():
        tensors = [torch.full((10000,), float(rank + i)) for i in range(20)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in reversed(works):
            assert work is not None
            assert work.wait()
            assert work.is_completed()
            assert work.is_success()
        assert all(t[0].item() == sum(r + i for r in range(size)) for i, t in enumerate(tensors))
        tensor = torch.full((3,), float(rank + 1))
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        assert torch.equal(doubled.wait(), torch.full((3,), 2.0 * sum(range(1, size + 1))))
        everyones: list[Any] = [None] * size
        dist.all_gather_object(everyones, {"rank": rank})
        assert everyones == [{"rank": r} for r in range(size)]
        dist.barrier()
        sequence = dist.group.WORLD._get_backend(torch.device("cpu"))._get_sequence_number_for_group()  # type: ignore
        assert sequence > 20


@case(2)
def wrong_arguments_are_named_before_anything_is_sent() -> None:
    rank, _size = rank_and_size()
    with torch_world():
        part = torch.zeros(3)
        with raises(InvalidArgument, "all_gather_into_tensor", "output has 5 elements", "input has 3 of 2 ranks"):
            dist.all_gather_into_tensor(torch.zeros(5), part)
        with raises(InvalidArgument, "reduce_scatter_tensor", "dtype: input is Double, output is Float"):
            dist.reduce_scatter_tensor(part, torch.zeros(6, dtype=torch.float64))
        with raises(InvalidArgument, "all_to_all_single", "first dimension, 3, is not divisible by 2"):
            dist.all_to_all_single(part, torch.zeros(3))
        with raises(InvalidArgument, "output_split_sizes: their sum is 4, the first dimension 3"):
            dist.all_to_all_single(part, torch.zeros(3), [2, 2], [1, 2])
        with raises(InvalidArgument, "tag: -3"):
            dist.send(part, 1 - rank, tag=-3)
        dist.all_reduce(part)  # still usable


@case(2, 4)
def shapes_that_differ_between_ranks_are_named() -> None:
    rank, size = rank_and_size()
    with torch_world():
        for asynchronous in (False, True):
            with raises(PeltonError, "all_reduce of process group", "count is 4 on rank 0 and 5 on rank 1"):
                work = dist.all_reduce(torch.zeros(5 if rank == 1 else 4), async_op=asynchronous)
                assert work is not None
                work.wait()
        if os.environ.get("PELTON_TEST_RANKS_PER_HOST") == "1":
            return  # a disagreement between hosts of one rank ends the communicator, see docs/collectives.md
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [size, size]
