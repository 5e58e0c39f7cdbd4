"""torch.distributed over Pelton where programs do something unusual."""

from __future__ import annotations

import datetime
import time
from typing import Any

import torch
import torch.distributed as dist
from pelton.errors import DeadlineExceeded, InvalidArgument

from cases.checks import raises, rank_and_size
from cases.registry import case
from cases.torch_world import torch_world


def _numbers(count: int, factor: int = 1) -> torch.Tensor:
    """Different on every rank; sums of them are exact."""
    rank, _ = rank_and_size()
    return torch.arange(count, dtype=torch.float32) % 97 * factor + rank


@case(2, 3, 4)
def outputs_may_overlap_inputs() -> None:
    _, size = rank_and_size()
    count = 1 << 15
    with torch_world():
        for chunk in range(size):
            whole = _numbers(size * count)
            expected = torch.empty(count)
            dist.reduce_scatter_tensor(expected, whole.clone())
            dist.reduce_scatter_tensor(whole[chunk * count : (chunk + 1) * count], whole)
            assert torch.equal(whole[chunk * count : (chunk + 1) * count], expected), chunk
            gathered, everyones = _numbers(size * count), torch.empty(size * count)
            part = gathered[chunk * count : (chunk + 1) * count]
            dist.all_gather_into_tensor(everyones, part.clone())
            dist.all_gather_into_tensor(gathered, part)
            assert torch.equal(gathered, everyones), chunk
        exchanged, swapped = torch.empty(size * count), _numbers(size * count)
        dist.all_to_all_single(exchanged, swapped.clone())
        dist.all_to_all_single(swapped, swapped)
        assert torch.equal(swapped, exchanged)
        pieces = list(_numbers(size * count).chunk(size))
        dist.all_to_all(pieces, list(pieces))
        assert torch.equal(torch.cat(pieces), exchanged)


@case(2, 3)
def lists_may_overlap_inputs() -> None:
    rank, size = rank_and_size()
    with torch_world():
        # Uneven, so that every rank's part is an operation of its own.
        sizes = [r + 2 for r in range(size)]
        whole = torch.full((sum(sizes),), float(rank))
        places = list(whole.split(sizes))
        dist.all_gather(places, whole[: sizes[rank]])
        assert all(torch.equal(place, torch.full((sizes[r],), float(r))) for r, place in enumerate(places))
        inputs = [torch.full((n,), float(rank + 1)) for n in sizes]
        dist.reduce_scatter(inputs[rank], inputs)
        assert inputs[rank].tolist() == [sum(range(1, size + 1))] * sizes[rank]
        column = torch.full((2, size), float(rank))
        dist.gather(column[:, 0], list(column.unbind(1)) if rank == 0 else None, 0)
        assert rank != 0 or torch.equal(column, torch.arange(float(size)).expand(2, size))


@case(2)
def inference_mode() -> None:
    rank, size = rank_and_size()
    with torch_world(), torch.inference_mode():
        own = torch.full((8,), float(rank))
        everyones = [torch.empty(8) for _ in range(size)]
        work: Any = dist.all_gather(everyones, own, async_op=True)
        deadline = time.monotonic() + 20
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(0.01)  # nobody waits: the queue's own thread stores the results
        work.wait()
        assert [int(tensor[0]) for tensor in everyones] == list(range(size))
        strided = torch.full((3, 2), float(rank + 1)).t()
        dist.all_reduce(strided)
        assert torch.equal(strided, torch.full((2, 3), 3.0))
    with torch_world():  # made there, filled outside
        dist.all_gather(everyones, torch.full((8,), float(rank + 5)))
        assert [int(tensor[0]) for tensor in everyones] == [5, 6]


@case(2)
def sums_of_sparse_tensors() -> None:
    rank, size = rank_and_size()
    with torch_world():
        for count in (0, 1, 5):
            rows = torch.arange(count) * (rank + 1) % 4  # some twice
            values = torch.arange(count * 3.0).view(count, 3) + rank
            tensor = torch.sparse_coo_tensor(rows.unsqueeze(0), values, (4, 3))
            expected = tensor.to_dense()
            dist.all_reduce(expected)
            work: Any = dist.all_reduce(tensor, async_op=True)
            following = torch.ones(1)
            dist.all_reduce(following)
            work.wait()
            assert following.item() == size
            assert torch.equal(tensor.to_dense(), expected)
        mean = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.tensor([4.0]), (3,))
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        assert mean.to_dense().tolist() == [2.0, 2.0, 0.0]
        with raises(InvalidArgument, "all_reduce", "SUM and AVG only"):
            dist.all_reduce(mean, dist.ReduceOp.MAX)
        other = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (3 + rank,))
        with raises(RuntimeError, "all_reduce", "rank 0 and of rank 1 differ in shape"):
            dist.all_reduce(other)
        dist.all_reduce(following)  # still usable


@case(3)
def a_monitored_barrier_names_who_is_missing() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        group: Any = dist.group.WORLD
        for wait_all_ranks in (False, True):
            group.monitored_barrier(wait_all_ranks=wait_all_ranks)
        short = datetime.timedelta(seconds=1)
        if rank == 0:
            with raises(DeadlineExceeded, "Ranks 1, 2 failed to pass monitoredBarrier in 1000 ms"):
                group.monitored_barrier(short, wait_all_ranks=True)
        dist.barrier()
        if rank != 1:
            missing = ("Rank 1 failed to pass",) if rank == 0 else ("Rank 2 successfully reached", "from rank 0")
            with raises(DeadlineExceeded, *missing):
                group.monitored_barrier(short)
        dist.barrier()
        group.monitored_barrier()  # what came too late for the others does not count here


@case(2, 3, 4)
def receives_from_any_source() -> None:
    rank, size = rank_and_size()
    last = size - 1
    with torch_world():
        if rank == 0:
            early: Any = dist.irecv(torch.empty(4), tag=3)  # nobody sends this before all else is done
            sources = []
            for _ in range(2 * last):
                tensor = torch.empty(4096)
                sources.append(dist.recv(tensor))
                assert tensor.eq(float(sources[-1])).all()
            assert sorted(sources) == sorted(2 * list(range(1, size)))
            dist.send(torch.zeros(1), last)
            early.wait()
            assert early._source_rank() == last
            with raises(InvalidArgument, "tag: -1"):
                dist.recv(torch.empty(4), tag=-1)
        else:
            for _ in range(2):
                dist.send(torch.full((4096,), float(rank)), 0)
            if rank == last:
                dist.recv(torch.zeros(1), 0)
                dist.send(torch.ones(4), 0, tag=3)


@case(2)
def a_receive_from_nobody_ends_in_time() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        group: Any = dist.new_group(timeout=datetime.timedelta(seconds=1))
        if rank == 0:
            with raises(DeadlineExceeded, "Timed out after 1000 ms", "rank 0: no rank has sent a message of tag 5"):
                dist.recv(torch.empty(4), group=group, tag=5)
        dist.barrier()


@case(2)
def profilers_show_every_operation() -> None:
    rank, size = rank_and_size()
    tensor, whole = torch.ones(2, 3), torch.ones(size * 2, 3)
    with torch_world(), torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        dist.reduce(tensor, 0)
        dist.all_gather_into_tensor(whole, tensor)
        dist.reduce_scatter_tensor(tensor, whole)
        dist.all_to_all_single(torch.empty_like(whole), whole)
        dist.gather(tensor, [torch.empty_like(tensor) for _ in range(size)] if rank == 0 else None)
        dist.scatter(tensor, [tensor.clone() for _ in range(size)] if rank == 0 else None)
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        work: Any = dist.all_reduce(tensor.to_sparse(), async_op=True)
        work.wait()
        dist.barrier()
    shapes = {event.name: event.input_shapes for event in profile.events() if event.name.startswith("pelton:")}
    small = ["all_reduce", "broadcast", "reduce", "all_gather", "gather", "send" if rank == 0 else "recv"]
    expected = {f"pelton:{name}": [[2, 3]] for name in small}
    expected |= {f"pelton:{name}": [[size * 2, 3]] for name in ("reduce_scatter", "all_to_all")}
    assert {name: shapes.get(name) for name in expected} == expected
    assert {"pelton:scatter", "pelton:sparse_all_reduce", "pelton:barrier"} <= set(shapes)


@case(2)
def both_ranks_may_ask_for_many_messages_before_they_send() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        received = [torch.zeros(1) for _ in range(300)]
        receives: list[Any] = [dist.irecv(tensor, 1 - rank) for tensor in received]
        sends: list[Any] = [dist.isend(torch.full((1,), float(i)), 1 - rank) for i in range(300)]
        for work in receives + sends:
            work.wait()
        assert [int(tensor) for tensor in received] == list(range(300))


@case(2)
def an_unmatched_receive_holds_up_nothing() -> None:
    rank, size = rank_and_size()
    with torch_world():
        early: Any = dist.irecv(torch.zeros(1), 1) if rank == 0 else None
        tensor = torch.empty(8)
        for _ in range(400):
            dist.all_reduce(tensor.fill_(1))
        assert tensor.tolist() == [size] * 8
        if rank == 1:
            dist.send(torch.ones(1), 0)
        else:
            early.wait()
