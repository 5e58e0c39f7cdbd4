"""Gather, scatter, the all-to-alls and reductions of every type; the forms of 2021; many tensors and values at once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pelton
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from pelton.errors import InvalidArgument
from pelton.torch_api import ReduceOp, communication

from cases.checks import assert_same_on_all_ranks, raises, rank_and_size
from cases.registry import NotRun, case

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
EVERY_DTYPE = (*INTEGERS, *FLOATS, *COMPLEX, torch.bool)
COUNTS = (1, 3, 40000)


def _of_rank(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, so that sums and products are exact in every type."""
    generator = torch.Generator().manual_seed(rank * 100003 + count)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    numbers = torch.randint(1, 4, (count,), generator=generator)
    if dtype.is_complex:
        return (numbers + 1j * torch.randint(1, 3, (count,), generator=generator)).to(dtype)
    return numbers.to(dtype)


def _stacked(size: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([_of_rank(r, count, dtype) for r in range(size)])


def _shared(tensor: torch.Tensor) -> torch.Tensor:
    return pelton.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def _private(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


@case(1, 2, 4)
def gather_to_each_rank() -> None:
    rank, size = rank_and_size()
    for count in COUNTS:
        everyones = _stacked(size, count)
        for place in (_shared, _private):
            for dst in range(size):
                own, target = place(everyones[rank]), place(torch.zeros(size, count))
                bagua.gather(own, target if rank == dst else None, dst)
                assert torch.equal(target, everyones if rank == dst else torch.zeros(size, count))
                inplace = place(torch.zeros(size, count) if rank == dst else own)
                (inplace[rank] if rank == dst else inplace).copy_(own)
                bagua.gather_inplace(inplace, count, dst)
                assert torch.equal(inplace, everyones if rank == dst else own)


@case(1, 2, 4)
def scatter_from_each_rank() -> None:
    rank, size = rank_and_size()
    for count in COUNTS:
        for place in (_shared, _private):
            for src in range(size):
                chunks = _of_rank(src, size * count).view(size, count)
                sent, target = place(chunks), place(torch.zeros(count))
                bagua.scatter(sent if rank == src else None, target, src)
                assert torch.equal(target, chunks[rank])
                inplace = place(chunks if rank == src else torch.zeros(count))
                bagua.scatter_inplace(inplace, count, src)
                assert torch.equal(inplace, chunks if rank == src else chunks[rank])


@case(1, 2, 4)
def alltoall_transposes() -> None:
    rank, size = rank_and_size()
    for count in COUNTS:
        sent = [_of_rank(r, size * count).view(size, count) for r in range(size)]
        expected = torch.stack([sent[r][rank] for r in range(size)])
        for place in (_shared, _private):
            target = place(torch.zeros(size, count))
            bagua.alltoall(place(sent[rank]), target)
            assert torch.equal(target, expected)
            inplace = place(sent[rank])
            bagua.alltoall_inplace(inplace)
            assert torch.equal(inplace, expected)


def _part(sender: int, receiver: int) -> int:
    """How much one rank sends to another: nothing, a little, or much."""
    return (0, 2, 1, 30000)[(sender * 2 + receiver * 3) % 4]


def _offsets(counts: list[int], gap: int) -> list[int]:
    return [sum(counts[:i]) + gap * (i + 1) for i in range(len(counts))]


@case(1, 2, 4)
def alltoall_v_with_gaps() -> None:
    rank, size = rank_and_size()
    counts = [_part(rank, peer) for peer in range(size)]
    recv_counts = [_part(peer, rank) for peer in range(size)]
    displs, recv_displs = _offsets(counts, 3), _offsets(recv_counts, 5)
    sent = torch.full((sum(counts) + 3 * size + 3,), -1, dtype=torch.int64)
    expected = torch.full((sum(recv_counts) + 5 * size + 5,), -2, dtype=torch.int64)
    for peer in range(size):
        sent[displs[peer] : displs[peer] + counts[peer]] = 10 * rank + peer
        expected[recv_displs[peer] : recv_displs[peer] + recv_counts[peer]] = 10 * peer + rank
    got = torch.full_like(expected, -2)
    bagua.alltoall_v(sent, counts, displs, got, recv_counts, recv_displs)
    assert torch.equal(got, expected)
    strided = torch.full((2, len(expected)), -2, dtype=torch.int64).t()[:, 0]
    as_tensor: Any = torch.tensor(counts)
    bagua.alltoall_v(sent, as_tensor, tuple(displs), strided, recv_counts, recv_displs)
    assert torch.equal(strided, expected)


@case(1, 2, 4)
def alltoall_v_in_place() -> None:
    rank, size = rank_and_size()
    counts = [1 + (rank + peer) % 3 for peer in range(size)]  # the same both ways
    displs = _offsets(counts, 1)
    tensor = torch.zeros(sum(counts) + 2 * size)
    expected = tensor.clone()
    for peer in range(size):
        tensor[displs[peer] : displs[peer] + counts[peer]] = 10 * rank + peer
        expected[displs[peer] : displs[peer] + counts[peer]] = 10 * peer + rank
    bagua.alltoall_v_inplace(tensor, counts, displs)
    assert torch.equal(tensor, expected)


@case(2)
def alltoall_v_whose_counts_differ() -> None:
    rank, _ = rank_and_size()
    expected = [3, 2] if rank else [2, 2]  # rank 0 sends 2
    with raises(InvalidArgument, "alltoall_v", "count is 2 on rank 0 and 3 on rank 1"):
        bagua.alltoall_v(torch.ones(6), [2, 2], [0, 3], torch.ones(6), expected, [0, 3])
    bagua.barrier()


def _bitwise(op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def combine(stacked: torch.Tensor) -> torch.Tensor:
        total = stacked[0]
        for row in stacked[1:]:
            total = op(total, row)
        return total

    return combine


REDUCTIONS: dict[ReduceOp, Callable[[torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: lambda stacked: stacked.sum(0).to(stacked.dtype),
    ReduceOp.PRODUCT: lambda stacked: stacked.prod(0).to(stacked.dtype),
    ReduceOp.MIN: lambda stacked: stacked.amin(0),
    ReduceOp.MAX: lambda stacked: stacked.amax(0),
    ReduceOp.BOR: _bitwise(torch.bitwise_or),
    ReduceOp.BAND: _bitwise(torch.bitwise_and),
    ReduceOp.BXOR: _bitwise(torch.bitwise_xor),
}


def _has_meaning(dtype: torch.dtype, op: ReduceOp) -> bool:
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        return not dtype.is_complex
    if op in (ReduceOp.BOR, ReduceOp.BAND, ReduceOp.BXOR):
        return not dtype.is_floating_point and not dtype.is_complex
    return op != ReduceOp.AVG or dtype != torch.bool


def _expected(op: ReduceOp, stacked: torch.Tensor) -> torch.Tensor:
    if op != ReduceOp.AVG:
        return REDUCTIONS[op](stacked)
    if stacked.dtype in INTEGERS:
        return stacked.sum(0).div(len(stacked), rounding_mode="trunc").to(stacked.dtype)
    wide = torch.complex128 if stacked.dtype.is_complex else torch.float64
    return (stacked.to(wide).sum(0) / len(stacked)).to(stacked.dtype)


@case(1, 2, 4)
def every_reduction_of_every_type() -> None:
    rank, size = rank_and_size()
    for dtype in EVERY_DTYPE:
        stacked = _stacked(size, 33, dtype)
        for op in ReduceOp:
            own = stacked[rank].clone()
            if not _has_meaning(dtype, op):
                with raises(InvalidArgument, op.name, str(dtype).removeprefix("torch.")):
                    bagua.allreduce_inplace(own, op)
                continue
            bagua.allreduce_inplace(own, op)
            torch.testing.assert_close(own, _expected(op, stacked), msg=f"{op} of {dtype}: {own}")


@case(2)
def every_type_moves() -> None:
    rank, size = rank_and_size()
    for dtype in EVERY_DTYPE:
        stacked = _stacked(size, 2 * 7, dtype)
        everyones = torch.zeros_like(stacked)
        bagua.allgather(stacked[rank], everyones)
        assert torch.equal(everyones, stacked)
        own = stacked[rank].clone()
        bagua.alltoall_inplace(own)
        assert torch.equal(own.view(2, 7), stacked.view(2, 2, 7)[:, rank])


@case(2)
def tensors_of_every_layout() -> None:
    """Transposed, strided, expanded, lazily conjugated, of no and of one element, and of no dimension."""
    rank, size = rank_and_size()
    scalar = torch.tensor(float(rank + 1))
    bagua.allreduce_inplace(scalar)
    assert scalar.shape == ()
    assert scalar.item() == 3
    both = torch.zeros(2)
    bagua.allgather(torch.tensor(float(rank)), both)
    assert both.tolist() == [0, 1]
    for operation in (bagua.allreduce_inplace, bagua.alltoall_inplace, bagua.allgather_inplace, bagua.broadcast):
        operation(torch.empty(0, 4))
    target = torch.zeros(3, 2 * size).t()
    bagua.alltoall(torch.full((2, 3), float(rank)).expand(2, 3), target[: 2 * size : 2])
    assert target[0].tolist() == [0.0] * 3
    assert target[2].tolist() == [1.0] * 3
    assert target[1].tolist() == [0.0] * 3
    bagua.gather(torch.tensor(2.0).expand(4), both.new_zeros(8) if rank == 0 else None, 0)
    conjugated = torch.tensor([1 + 2j]).conj()
    bagua.allreduce(conjugated, result := torch.zeros(1, dtype=torch.complex64))
    assert result.item() == 2 - 4j
    bagua.allreduce_inplace(conjugated)
    assert conjugated.resolve_conj().item() == 2 - 4j
    negative = torch.tensor([1 + 2j]).conj().imag
    assert negative.is_neg()
    bagua.allreduce_inplace(negative)
    assert negative.item() == -4
    with raises(InvalidArgument, "recv_tensor", "expanded"):
        bagua.allreduce(torch.ones(4), torch.zeros(1).expand(4))


@case(2)
def tensors_that_share_memory() -> None:
    rank, size = rank_and_size()
    memory = torch.arange(5.0) + 10 * rank
    before = [torch.arange(5.0) + 10 * r for r in range(size)]
    bagua.allreduce(memory[:4], memory[1:])
    assert memory.tolist() == [10.0 * rank, *(before[0] + before[1])[:4].tolist()]
    memory = torch.arange(8.0) + 10 * rank
    bagua.allgather(memory[1:3], memory[:4])
    assert memory[:4].tolist() == [1.0, 2.0, 11.0, 12.0]
    memory = torch.arange(8.0)
    bagua.reduce_scatter(memory[:4], memory[1:3])
    assert memory[1:3].tolist() == ([0.0, 2.0] if rank == 0 else [4.0, 6.0])


@case(2)
def the_forms_of_2021() -> None:
    rank, _ = rank_and_size()
    world = bagua.new_group().get_global_communicator()
    forms: list[tuple[Callable[[torch.Tensor], None], float]] = [
        (lambda t: bagua.allreduce(t), 3),
        (lambda t: bagua.allreduce(tensor=t), 3),
        (lambda t: bagua.allreduce(t, op=dist.ReduceOp.MAX), 2),
        (lambda t: bagua.allreduce(t, dist.ReduceOp.PRODUCT, world), 2),
        (lambda t: bagua.allreduce(t, dist.ReduceOp.MIN, comm=world), 1),
        (lambda t: bagua.broadcast(t, root=1), 2),
        (lambda t: bagua.broadcast(t, 1, world), 2),
        (lambda t: bagua.reduce(t, 0), 3 if rank == 0 else 2),
        (lambda t: bagua.reduce(t, dst=1), 1 if rank == 0 else 3),
        (lambda t: bagua.reduce(t, 1, dist.ReduceOp.PRODUCT), 1 if rank == 0 else 2),
        (lambda t: bagua.reduce(t, 1, dist.ReduceOp.MIN, world), 1),
        (lambda t: bagua.reduce(tensor=t, dst=0, op=dist.ReduceOp.AVG, comm=world), 1.5 if rank == 0 else 2),
    ]
    for i, (form, expected) in enumerate(forms):
        tensor = torch.full((3,), float(rank + 1))
        form(tensor)
        assert tensor.tolist() == [expected] * 3, (i, tensor)
    with raises(bagua.RepeatedInitializationError, "already"):
        bagua.init_process_group()
    model = torch.nn.Linear(2, 2)
    same, optimizer = bagua.bagua_init(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert same is model
    assert model.bagua_optimizers == [optimizer]
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def many_tensors_at_once() -> None:
    rank, size = rank_and_size()

    def make(r: int) -> list[torch.Tensor]:
        tensors = [_of_rank(r, 3 + i, EVERY_DTYPE[i]) for i in range(len(EVERY_DTYPE) - 1)]
        return [*tensors, torch.empty(0), _of_rank(r, 12).view(3, 4).t(), _of_rank(r, 9 << 20)]

    tensors = make(rank)
    communication.allreduce_coalesced_inplace(tensors)
    for tensor, parts in zip(tensors, zip(*(make(r) for r in range(size)))):
        assert torch.equal(tensor, (parts[0] + parts[1]).to(tensor.dtype))
    tensors = [*make(rank), torch.tensor([rank == 1])]
    communication.broadcast_coalesced(tensors, 1)
    for tensor, expected in zip(tensors, [*make(1), torch.tensor([True])]):
        assert torch.equal(tensor, expected)
    untouched = torch.ones(2, dtype=torch.int32)
    with raises(InvalidArgument, "BOR", "float32"):
        communication.allreduce_coalesced_inplace([untouched, torch.ones(2)], ReduceOp.BOR)
    assert untouched.tolist() == [1, 1]
    with raises(InvalidArgument, "tensors[1]", "str"):
        wrong: Any = [torch.ones(1), "x"]
        communication.broadcast_coalesced(wrong)
    with raises(InvalidArgument, "tensors", "Tensor"):
        wrong = torch.ones(2, 2)
        communication.broadcast_coalesced(wrong)


class _Opaque:
    pass


@case(1, 2, 4)
def values_of_every_kind() -> None:
    rank, size = rank_and_size()
    value: dict[Any, Any] = {
        "text": "naïve \ud800",
        3: [1.5, float("inf"), -0.0, 1 << 80, None, True],
        (1, "two"): {"set": {1, 2}, "frozen": frozenset({b"x"}), "bytes": bytes(range(256))},
        "complex": 1 - 2j,
        "dtype": torch.bfloat16,
        "tensors": (torch.arange(6).view(2, 3).t(), torch.empty(0, 2), torch.tensor(2.5), torch.tensor([True])),
    }
    for src in range(size):
        got = communication.broadcast_object(value if rank == src else None, src)
        assert torch.equal(got["tensors"][0], value["tensors"][0])
        assert [t.shape for t in got["tensors"]] == [t.shape for t in value["tensors"]]
        plain = {key: part for key, part in got.items() if key != "tensors"}
        assert repr(plain) == repr({key: part for key, part in value.items() if key != "tensors"})
    assert communication.broadcast_object("x" * 3_000_000 if rank == 0 else None) == "x" * 3_000_000


@case(2)
def values_that_cannot_be_sent() -> None:
    rank, _ = rank_and_size()
    endless: list[Any] = []
    endless.append(endless)
    cases: list[tuple[Any, str]] = [
        (_Opaque(), "obj is a _Opaque"),
        ({"a": [1, print]}, "obj['a'][1] is a builtin_function_or_method"),
        (endless, "nested too deeply"),
        (10**5000, "obj cannot be sent: ValueError: Exceeds the limit"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.ones(1, device="meta"), "meta"),
    ]
    for value, words in cases:
        with raises(InvalidArgument, words, *(("rank 0",) if rank else ())):
            communication.broadcast_object(value if rank == 0 else None)
    assert communication.broadcast_object(rank, 1) == 1


@case(2)
def more_elements_than_31_bits_count() -> None:
    """3 GiB on each of the two ranks, where there is as much; a busy machine takes its time to clear that."""
    rank, _ = rank_and_size()
    bagua.destroy_process_group()
    bagua.init_process_group(timeout=200)
    count = 3 << 30
    with open("/proc/meminfo") as file:
        free_kib = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    enough = torch.tensor([free_kib << 10 > 4 * count])
    bagua.allreduce_inplace(enough, ReduceOp.BAND)
    if not enough.item():
        raise NotRun(f"needs {4 * count >> 30} GiB of memory, not all ranks have found as much")
    tensor = torch.empty(count, dtype=torch.uint8)
    tensor[0], tensor[1 << 31], tensor[-1] = 1 + rank, 2 + rank, 3 + rank
    bagua.broadcast(tensor, 1)
    assert (tensor[0].item(), tensor[1 << 31].item(), tensor[-1].item()) == (2, 3, 4)
    del tensor
    gc.collect()
