"""BlueFog's operations against NumPy, on static and dynamic topologies."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pelton.bluefog.torch as bf
import torch
from pelton.bluefog.common.util import env
from pelton.errors import InvalidArgument, PeltonError

from cases.registry import case

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (3,), (2, 0, 3), (17, 5), (1 << 15, 3))


def raises(kind: type[BaseException], pattern: str, call: Callable[[], object]) -> None:
    """The call must raise this error, with a text in which the pattern is found."""
    try:
        call()
    except kind as error:
        assert re.search(pattern, str(error)), f"{pattern!r} is not in: {error}"
        return
    raise AssertionError(f"no {kind.__name__} was raised, which would say {pattern!r}")


def _of_rank(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank * 7919 + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _combined(terms: list[tuple[float, torch.Tensor]]) -> torch.Tensor:
    """The weighted sum, by NumPy in float64."""
    total = sum(weight * tensor.double().numpy() for weight, tensor in terms)
    return torch.from_numpy(np.asarray(total)).to(terms[0][1].dtype)


def _assert_close(result: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-14}[result.dtype]
    assert result.shape == expected.shape and result.dtype == expected.dtype, (result.shape, expected.shape)
    assert torch.allclose(result.double(), expected.double(), rtol=tolerance, atol=tolerance)


def _graphs(size: int) -> list[Any]:
    graphs = [bf.ExponentialGraph(size), bf.RingGraph(size), bf.StarGraph(size), bf.MeshGrid2DGraph(size)]
    return [*graphs, bf.RingGraph(size, connect_style=1), bf.FullyConnectedGraph(size)]


@case(1, 2, 3, 4)
def neighbors_average_over_each_topology() -> None:
    bf.init()
    rank, size = bf.rank(), bf.size()
    for graph in _graphs(size):
        for is_weighted in (False, True):
            assert bf.set_topology(graph, is_weighted)
            own, sources = bf.GetRecvWeights(graph, rank)
            if not is_weighted:
                own, sources = 1 / (len(sources) + 1), dict.fromkeys(sources, 1 / (len(sources) + 1))
            assert sorted(bf.in_neighbor_ranks()) == sorted(sources)
            for dtype in DTYPES:
                for shape in SHAPES[:5]:
                    tensor = _of_rank(rank, shape, dtype)
                    kept = tensor.clone()
                    result = bf.neighbor_allreduce(tensor)
                    terms = [(own, tensor), *((weight, _of_rank(j, shape, dtype)) for j, weight in sources.items())]
                    _assert_close(result, _combined(terms))
                    assert (torch.equal(tensor, kept) and result.data_ptr() != tensor.data_ptr()) or not tensor.numel()
    bf.shutdown()


@case(2, 4)
def large_and_non_contiguous_tensors_are_averaged() -> None:
    bf.init(lambda size: bf.RingGraph(size))
    rank, neighbors = bf.rank(), bf.in_neighbor_ranks()
    shape, share = SHAPES[5], 1 / (len(neighbors) + 1)
    for view in (lambda t: t, lambda t: t.t(), lambda t: t[::2], lambda t: t.unsqueeze(0).expand(2, *t.shape)):
        terms = [(share, view(_of_rank(j, shape, torch.float32))) for j in (rank, *neighbors)]
        _assert_close(bf.neighbor_allreduce(terms[0][1]), _combined(terms))
    parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
    assert not bf.neighbor_allreduce(parameter).requires_grad
    uniform = torch.tensor([2.0**-256], dtype=torch.float64)
    assert torch.equal(bf.neighbor_allreduce(uniform), uniform)
    bf.shutdown()


@case(4)
def given_weights_hold_by_rank() -> None:
    bf.init(lambda size: bf.RingGraph(size))
    rank = bf.rank()
    left, right = (rank - 1) % 4, (rank + 1) % 4
    mine = torch.tensor([float(rank)])
    result = bf.neighbor_allreduce(mine, self_weight=0.25, src_weights={left: 0.5, right: 0.25})
    assert result.item() == 0.25 * rank + 0.5 * left + 0.25 * right
    subset = bf.neighbor_allreduce(mine, self_weight=0.5, src_weights={right: 0.5})
    assert subset.item() == (rank + right) / 2
    alone = bf.neighbor_allreduce(mine, self_weight=3, src_weights={})
    assert alone.item() == 3 * rank and mine.item() == rank and alone.data_ptr() != mine.data_ptr()
    assert bf.neighbor_allreduce(mine, 0.5, {right: 0.5}, "by place").item() == (rank + right) / 2
    assert bf.neighbor_allreduce(mine, self_weight=0.5, neighbor_weights={left: 0.5}).item() == (rank + left) / 2
    raises(InvalidArgument, "give both or none", lambda: bf.neighbor_allreduce(mine, self_weight=0.5))
    raises(ValueError, "no in-neighbors", lambda: bf.neighbor_allreduce(mine, self_weight=0.5, src_weights={rank: 1}))
    loose: Any = bf.neighbor_allreduce
    raises(ValueError, "must be a number", lambda: loose(mine, self_weight="1", src_weights={}))
    bf.shutdown()


@case(4)
def dynamic_edges_need_no_topology() -> None:
    bf.init(lambda size: bf.RingGraph(size))
    rank = bf.rank()
    across = (rank + 2) % 4
    mine = torch.full((2,), float(rank), dtype=torch.float64)
    both = bf.neighbor_allreduce(mine, self_weight=0.5, src_weights={across: 0.5}, dst_weights=[across])
    assert torch.equal(both, torch.full_like(mine, (rank + across) / 2))
    weighted = bf.neighbor_allreduce(mine, self_weight=1.0, src_weights={across: 0.5}, dst_weights={across: rank + 1.0})
    assert torch.equal(weighted, torch.full_like(mine, rank + 0.5 * (across + 1) * across))
    sends = {0: {1: 1.0, 2: 1.0}}.get(rank, {})
    receives = {1: {0: 2.0}, 2: {0: 3.0}}.get(rank, {})
    result = bf.neighbor_allreduce(mine + 1, self_weight=0.25, src_weights=receives, dst_weights=sends)
    assert torch.equal(result, (mine + 1) * 0.25 + receives.get(0, 0.0)), result
    older = bf.neighbor_allreduce(mine, self_weight=0.5, neighbor_weights={across: 0.5}, send_neighbors=[across])
    assert torch.equal(older, both)
    by_position: Any = bf.neighbor_allreduce
    assert torch.equal(by_position(mine, 0.5, {across: 0.5}, [across]), both)
    assert torch.equal(by_position(mine, 0.5, {across: 0.5}, [across], True, "a name"), both)
    raises(ValueError, "two of one type", lambda: by_position(mine, 0.5, {across: 0.5}, "a name", "another"))
    iterator = bf.GetDynamicOnePeerSendRecvRanks(bf.ExponentialGraph(4), rank)
    for _ in range(5):
        to, come = next(iterator)
        share = 1 / (len(come) + 1)
        result = bf.neighbor_allreduce(mine, self_weight=share, src_weights=dict.fromkeys(come, share), dst_weights=to)
        assert torch.allclose(result, torch.full_like(mine, (rank + sum(come)) * share))
    bf.shutdown()


@case(3)
def ends_that_do_not_meet_are_an_error_on_every_rank() -> None:
    bf.init()
    rank, mine = bf.rank(), torch.zeros(2)

    def call(to: Any, come: Any, **options: Any) -> None:
        bf.neighbor_allreduce(mine, self_weight=1.0, src_weights=come, dst_weights=to, **options)

    raises(
        ValueError, "rank 0 sends to rank 2, but rank 2 does not receive", lambda: call([2] if rank == 0 else [], {})
    )
    raises(
        ValueError,
        "rank 1 receives from rank 2, but rank 2 does not send",
        lambda: call([], {2: 1} if rank == 1 else {}),
    )
    wrong = "rank 1" if rank != 1 else "is not in"
    raises(ValueError, wrong, lambda: call([7] if rank == 1 else [], {}))
    raises(ValueError, "this rank itself|rank . has called", lambda: call([rank], {}))
    raises(ValueError, "names a rank twice|rank 0 has called", lambda: call([1, 1] if rank == 0 else [], {}))
    assert bf.neighbor_allreduce(torch.tensor([6.0]), self_weight=1.0, src_weights={}, dst_weights=[]).item() == 6
    bf.shutdown()


@case(4)
def tensors_that_differ_are_an_error_at_both_ends() -> None:
    bf.init(lambda size: bf.RingGraph(size, connect_style=2))
    rank = bf.rank()
    tensor = torch.ones(3 if rank == 1 else 2)
    if rank in (0, 1, 2):
        raises(ValueError, "count is", lambda: bf.neighbor_allreduce(tensor, name="counts"))
    else:
        assert torch.equal(bf.neighbor_allreduce(tensor, name="counts"), torch.ones(2))
    bf.barrier()
    raises(
        ValueError,
        "dtype is",
        lambda: bf.neighbor_allreduce(torch.ones(2).to([torch.float32, torch.float64][rank % 2])),
    )
    raises(ValueError, "int64", lambda: bf.neighbor_allreduce(torch.ones(2, dtype=torch.int64)))
    gathered = torch.ones(2, 3 if rank == 1 else 4)
    if rank in (0, 1, 2):
        raises(ValueError, r"\[2, 3\] on rank|\[2, 3\]", lambda: bf.neighbor_allgather(gathered))
    else:
        assert bf.neighbor_allgather(gathered).shape == (2, 4)
    bf.barrier()
    assert bf.neighbor_allreduce(torch.ones(2)).tolist() == [1, 1]
    bf.shutdown()


@case(4)
def shapes_with_equally_many_elements_are_told_apart() -> None:
    bf.init(lambda size: bf.RingGraph(size, connect_style=2))
    rank = bf.rank()
    shape = (2, 3) if rank == 1 else (3, 2)
    tensor = torch.arange(6.0).reshape(shape)
    told = rf"shapes of the tensors differ on rank .*6 elements; this rank's is \[{shape[0]}, {shape[1]}\]"
    for name in (None, "a name"):
        if rank == 3:
            assert torch.equal(bf.neighbor_allreduce(tensor, name=name), tensor)
        else:
            raises(ValueError, told, partial(bf.neighbor_allreduce, tensor, name=name))
        raises(ValueError, "rank 0 and rank 1, ", partial(bf.allreduce, tensor, name=name))
        raises(ValueError, told, partial(bf.broadcast, tensor, 1, name=name))
        raises(ValueError, told, partial(bf.broadcast_, tensor.clone(), 1, name=name))
    raises(ValueError, told, lambda: bf.synchronize(bf.allreduce_nonblocking_(tensor.clone())))
    one = torch.ones(()) if rank == 2 else torch.ones(1)
    raises(ValueError, "rank 0 and rank 2", lambda: bf.allreduce(one))
    weights: dict[str, Any] = {"self_weight": 0.5, "src_weights": {rank ^ 1: 0.5}, "dst_weights": {rank ^ 1: 2.0}}
    if rank < 2:
        raises(ValueError, told, lambda: bf.neighbor_allreduce(tensor, **weights))
    else:
        assert torch.equal(bf.neighbor_allreduce(tensor, **weights), 1.5 * tensor)
    assert torch.equal(bf.neighbor_allreduce(torch.ones(3, 2)), torch.ones(3, 2))
    bf.shutdown()


@case(1, 2, 4)
def neighbors_gather_tensors_of_different_lengths() -> None:
    bf.init()
    rank, size = bf.rank(), bf.size()
    for dtype in (*DTYPES, torch.int64, torch.uint8, torch.bool, torch.complex64):
        for lengths in ([2] * size, list(range(size)), [0] * size):
            parts = [torch.full((lengths[j], 3), j % 2 if dtype == torch.bool else j, dtype=dtype) for j in range(size)]
            expected = torch.cat([parts[rank][:0], *(parts[j] for j in sorted(bf.in_neighbor_ranks()))])
            assert torch.equal(bf.neighbor_allgather(parts[rank]), expected), (dtype, lengths)
            assert torch.equal(bf.allgather(parts[rank]), torch.cat(parts)), (dtype, lengths)
    raises(ValueError, "0 dimensions", lambda: bf.allgather(torch.tensor(1.0)))
    raises(ValueError, "0 dimensions", lambda: bf.neighbor_allgather(torch.tensor(1.0)))
    others = [(rank + 1) % size, (rank - 1) % size] if size > 2 else [j for j in range(size) if j != rank]
    mine = torch.arange(rank + 1).reshape(-1, 1)
    expected = torch.cat([mine[:0], *(torch.arange(j + 1).reshape(-1, 1) for j in others)])
    for make in (list, np.array, torch.tensor):
        ranks: dict[str, Any] = {"src_ranks": make(others), "dst_ranks": make(others[::-1])}
        assert torch.equal(bf.neighbor_allgather(mine, **ranks), expected), make
    raises(ValueError, "both or none|has called", lambda: bf.neighbor_allgather(mine, src_ranks=others))
    bf.shutdown()


@case(2, 4)
def names_match_whatever_the_order() -> None:
    bf.init()
    rank, size = bf.rank(), bf.size()
    names = [f"parameter {i}" for i in range(20)]
    order = names if rank % 2 == 0 else list(reversed(names))
    tensors = {name: torch.full((3,), float(i * size + rank)) for i, name in enumerate(names)}
    handles = {name: bf.neighbor_allreduce_nonblocking(tensors[name], name=name) for name in order}
    gathers = {name: bf.neighbor_allgather_nonblocking(tensors[name][: rank + 1], name=name) for name in order}
    come = bf.in_neighbor_ranks()
    for i, name in enumerate(names):
        mean = i * size + (rank + sum(come)) / (len(come) + 1)
        assert torch.allclose(bf.synchronize(handles[name]), torch.full((3,), mean))
        parts = [torch.full((min(3, j + 1),), float(i * size + j)) for j in sorted(come)]
        assert torch.equal(bf.wait(gathers[name]), torch.cat(parts))
    unnamed = [bf.neighbor_allgather_nonblocking(torch.full((rank + i,), float(i))) for i in range(10)]
    for i in (*range(0, 10, 2), *range(1, 10, 2)) if rank % 2 else range(10):
        expected = torch.full((sum(j + i for j in come),), float(i))
        assert torch.equal(bf.synchronize(unnamed[i]), expected)
    bf.shutdown()


@case(2)
def handles_are_waited_for_once() -> None:
    bf.init()
    tensor = torch.full((2,), float(bf.rank()))
    if bf.rank() == 0:
        handle = bf.neighbor_allreduce_nonblocking(tensor, name="same")
        raises(ValueError, "'same' is under way", lambda: bf.neighbor_allreduce_nonblocking(tensor, name="same"))
        raises(ValueError, "'same' is under way", lambda: bf.neighbor_allreduce(tensor, name="same"))
        assert not bf.poll(handle)
        bf.broadcast(tensor, 0)
    else:
        bf.broadcast(tensor, 0)
        handle = bf.neighbor_allreduce_nonblocking(tensor, name="same")
    assert torch.equal(bf.synchronize(handle), torch.full((2,), 0.5))
    raises(ValueError, "waited for already", lambda: bf.synchronize(handle))
    raises(ValueError, "is none of an operation", lambda: bf.poll(12345))
    assert torch.equal(bf.neighbor_allreduce(tensor, name="same"), torch.full((2,), 0.5))
    bf.shutdown()


@case(1, 3)
def collectives_have_bluefogs_forms() -> None:
    bf.init()
    rank, size = bf.rank(), bf.size()
    mine = torch.full((2, 2), float(rank))
    mean = (size - 1) / 2
    assert torch.equal(bf.allreduce(mine), torch.full((2, 2), mean))
    older: Any = bf.allreduce
    assert torch.equal(older(mine, False, "a name"), torch.full((2, 2), mean * size))
    handle = bf.allreduce_nonblocking(mine, name="b")
    assert torch.equal(bf.synchronize(handle), torch.full((2, 2), mean))
    whole = torch.tensor([rank + 1])
    assert bf.allreduce(whole, average=False).item() == size * (size + 1) // 2
    raises(AssertionError, "has no mean", lambda: bf.allreduce(whole))
    in_place = mine.clone()
    assert bf.allreduce_(in_place) is in_place and torch.equal(in_place, torch.full((2, 2), mean))
    strided = torch.full((4, 2), float(rank))[::2]
    bf.synchronize(bf.allreduce_nonblocking_(strided, average=False))
    assert torch.equal(strided, torch.full((2, 2), mean * size))
    root = size - 1
    assert torch.equal(bf.broadcast(mine, root), torch.full((2, 2), float(root)))
    assert torch.equal(bf.synchronize(bf.broadcast_nonblocking(mine, root)), torch.full((2, 2), float(root)))
    given = mine.clone()
    assert bf.broadcast_(given, root) is given and torch.equal(given, torch.full((2, 2), float(root)))
    raises(ValueError, "root_rank: 9", lambda: bf.broadcast(mine, 9))
    leaf = torch.full((2,), float(rank), requires_grad=True)
    (bf.broadcast(leaf, root) * (rank + 1)).sum().backward()
    expected = float(size * (size + 1) // 2) if rank == root else 0.0
    assert leaf.grad is not None and leaf.grad.tolist() == [expected] * 2
    bf.barrier()
    bf.shutdown()


@case(2)
def collectives_in_other_orders_are_an_error_with_both_names() -> None:
    bf.init()
    rank = bf.rank()
    names = ["first", "second"] if rank == 0 else ["second", "first"]
    for count in (lambda name: 4, lambda name: 4 if name == "first" else 5):
        handles = [bf.allreduce_nonblocking(torch.ones(count(name)), name=name) for name in names]
        for handle in handles:
            raises(ValueError, "'first'.*'second'|'second'.*'first'", partial(bf.synchronize, handle))
    kinds = [bf.allreduce_nonblocking, lambda t: bf.broadcast_nonblocking(t, 0)]
    handle = kinds[rank](torch.ones(4))
    raises(ValueError, "allreduce on rank 0 and broadcast on rank 1", lambda: bf.synchronize(handle))
    raises(ValueError, "root is 0 on rank 0 and 1 on rank 1", lambda: bf.broadcast(torch.ones(4), rank))
    raises(ValueError, r"\[2\] on rank 0 and .*\[2, 2\] on rank 1", lambda: bf.allgather(torch.ones([2] * (rank + 1))))
    assert torch.equal(bf.allreduce(torch.ones(2), name="first"), torch.ones(2))
    bf.shutdown()


@case(4)
def machines_average_their_means() -> None:
    with env(BLUEFOG_NODES_PER_MACHINE="2"):
        bf.init()
    rank = bf.rank()
    assert (bf.local_size(), bf.local_rank(), bf.machine_size(), bf.machine_rank()) == (2, rank % 2, 2, rank // 2)
    assert bf.is_homogeneous()
    mine = torch.full((3,), float(rank**2))
    raises(RuntimeError, "set_machine_topology", lambda: bf.hierarchical_neighbor_allreduce(mine))
    itself: dict[str, Any] = {"src_machine_weights": {rank // 2: 0.5}, "dst_machine_weights": [1 - rank // 2]}
    text = f"machine {rank // 2} is this one itself; give its weight as self_weight"
    raises(ValueError, text, lambda: bf.hierarchical_neighbor_allreduce(mine, self_weight=0.5, **itself))
    edges: dict[str, Any] = {"src_machine_weights": {1 - rank // 2: 0.5}, "dst_machine_weights": [1 - rank // 2]}
    assert torch.equal(bf.hierarchical_neighbor_allreduce(mine, self_weight=0.5, **edges), torch.full((3,), 3.5))
    assert bf.set_machine_topology(bf.RingGraph(2))
    assert bf.in_neighbor_machine_ranks() == bf.out_neighbor_machine_ranks() == [1 - rank // 2]
    means = [0.5, 6.5]
    assert torch.equal(bf.hierarchical_neighbor_allreduce(mine), torch.full((3,), 3.5))
    here, there = means[rank // 2], means[1 - rank // 2]
    weights: dict[str, Any] = {"src_machine_weights": {1 - rank // 2: 0.25}, "dst_machine_weights": [1 - rank // 2]}
    for checks in (False, True):
        result = bf.hierarchical_neighbor_allreduce(mine, self_weight=0.5, enable_topo_check=checks, **weights)
        assert torch.equal(result, torch.full((3,), 0.5 * here + 0.25 * there))
    handles = [bf.hierarchical_neighbor_allreduce_nonblocking(mine + i) for i in range(10)]
    for i, handle in reversed(list(enumerate(handles))):
        assert torch.equal(bf.synchronize(handle), torch.full((3,), 3.5 + i))
    raises(ValueError, "all three or none", lambda: bf.hierarchical_neighbor_allreduce(mine, self_weight=0.5))
    assert torch.equal(bf.allreduce(mine, is_hierarchical_local=True), torch.full((3,), here))
    bf.shutdown()
    assert "BLUEFOG_NODES_PER_MACHINE" not in os.environ


@case(4)
def machines_may_send_to_more_than_they_receive_from() -> None:
    """In BlueFog the result has the room of the destinations; and one machine alone ends its process."""
    with env(BLUEFOG_NODES_PER_MACHINE="1"):
        bf.init()
    bf.set_machine_topology(bf.StarGraph(4))
    rank = bf.rank()
    mine = torch.full((3,), float(rank + 1))
    weights: dict[str, Any] = {"src_machine_weights": {}, "dst_machine_weights": [1, 2, 3]}
    if rank > 0:
        weights = {"src_machine_weights": {0: 0.5}, "dst_machine_weights": []}
    result = bf.hierarchical_neighbor_allreduce(mine, self_weight=2.0, **weights)
    assert torch.equal(result, torch.full((3,), 2.0 if rank == 0 else 2 * (rank + 1) + 0.5)), result
    bf.shutdown()
    with env(BLUEFOG_NODES_PER_MACHINE="4"):
        bf.init()
    bf.set_machine_topology(bf.RingGraph(1))
    assert torch.equal(bf.hierarchical_neighbor_allreduce(mine), torch.full((3,), 2.5))
    bf.shutdown()


@case(4)
def a_machine_whose_tensors_differ_is_an_error_on_its_neighbors_too() -> None:
    with env(BLUEFOG_NODES_PER_MACHINE="2"):
        bf.init()
    rank = bf.rank()
    assert bf.set_machine_topology(bf.RingGraph(2))
    for name in (None, "a name"):
        tensors = {"count is 3 on rank 2 and 4 on rank 3": torch.ones(3 + (rank == 3))}
        tensors["shapes of the tensors differ on rank 2 and rank 3"] = torch.ones((2, 3) if rank == 3 else (3, 2))
        for text, tensor in tensors.items():
            expected = text if rank >= 2 else rf"rank {rank + 2} has failed in an earlier stage .*x [346]\)"
            raises(ValueError, expected, partial(bf.hierarchical_neighbor_allreduce, tensor, name=name))
        between = torch.ones(3 + (rank >= 2))
        raises(
            ValueError,
            f"count is . on rank {rank % 2} and . on rank {rank % 2 + 2}|count is . on rank {rank % 2 + 2}",
            partial(bf.hierarchical_neighbor_allreduce, between, name=name),
        )
    local = torch.ones(3 + (rank == 3))
    if rank >= 2:
        raises(ValueError, "on rank 2 and 4 on rank 3", lambda: bf.allreduce(local, is_hierarchical_local=True))
    assert bf.hierarchical_neighbor_allreduce(torch.full((3,), float(rank))).tolist() == [1.5] * 3
    bf.shutdown()


@case(2)
def checks_of_the_topology_are_named_so() -> None:
    bf.init()
    other = 1 - bf.rank()
    weights: dict[str, Any] = {"self_weight": 0.5, "src_weights": {other: 0.5}, "dst_weights": [other]}
    ends: dict[str, Any] = {"src_ranks": [other], "dst_ranks": [other]}
    tensor = torch.ones(2)
    calls = {
        "neighbor_allreduce": lambda: bf.neighbor_allreduce(tensor, **weights),
        "neighbor_allgather": lambda: bf.neighbor_allgather(tensor, **ends),
    }
    for name, call in calls.items():
        if other == 1:
            raises(ValueError, "^allreduce: ", lambda: bf.allreduce(tensor))
        else:
            raises(ValueError, rf"^{name}'s check of the topology \(enable_topo_check\): ", call)
    assert bf.neighbor_allreduce(tensor, **weights).tolist() == [1.0, 1.0]
    bf.shutdown()


@case(2)
def pairs_gossip() -> None:
    from pelton.bluefog.torch import mpi_ops

    bf.init()
    rank = bf.rank()
    mine = torch.full((2,), float(rank))
    assert torch.equal(mpi_ops.pair_gossip(mine, 1 - rank), torch.full((2,), 0.5))
    assert torch.equal(mpi_ops.pair_gossip(mine, 1 - rank, 1.0, 2.0), mine + 2 * (1 - mine))
    raises(ValueError, "both or none", lambda: mpi_ops.pair_gossip(mine, 1 - rank, 1.0))
    bf.shutdown()


@case(3)
def a_neighbor_that_does_not_call_holds_up_only_its_own() -> None:
    bf.init()
    rank = bf.rank()
    if rank < 2:
        barrier = bf.allreduce_nonblocking(torch.zeros(1))
        pair: dict[str, Any] = {
            "self_weight": 0.5,
            "src_weights": {1 - rank: 0.5},
            "dst_weights": [1 - rank],
            "enable_topo_check": False,
        }
        for _ in range(50):
            assert bf.neighbor_allreduce(torch.full((2,), float(rank)), **pair).tolist() == [0.5, 0.5]
        assert not bf.poll(barrier)
        if rank == 0:
            bf.neighbor_allgather(torch.ones(1), src_ranks=[], dst_ranks=[2], enable_topo_check=False)
        bf.synchronize(barrier)
    else:
        bf.neighbor_allgather(torch.ones(0), src_ranks=[0], dst_ranks=[], enable_topo_check=False)
        bf.allreduce(torch.zeros(1))
    bf.shutdown()


@case(2)
def suspended_operations_are_refused() -> None:
    bf.init()
    bf.suspend()
    raises(ValueError, "resume", lambda: bf.allreduce(torch.ones(1)))
    bf.resume()
    assert bf.allreduce(torch.ones(1)).item() == 1
    assert isinstance(PeltonError("x"), RuntimeError)
    bf.shutdown()
