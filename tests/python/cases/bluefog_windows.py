"""BlueFog's windows: what each call does to tensors, buffers, versions and p, and push-sum by them."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable

import pelton.bluefog.torch as bf
import torch
from pelton.bluefog.torch import mpi_ops
from pelton.errors import FailedPrecondition, InvalidArgument
from pelton.torch_api.contrib import fuse_optimizer

from cases.registry import case

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (3,), (17, 5), (1 << 14, 3))


def raises(kind: type[BaseException], pattern: str, call: Callable[[], object]) -> None:
    """The call must raise this error, with a text in which the pattern is found."""
    try:
        call()
    except kind as error:
        assert re.search(pattern, str(error)), f"{pattern!r} is not in: {error}"
        return
    raise AssertionError(f"no {kind.__name__} was raised, which would say {pattern!r}")


def _filled(value: float, shape: tuple[int, ...] = (7, 3), dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype)


def _assert_all(tensor: torch.Tensor, value: float) -> None:
    assert torch.equal(tensor, torch.full_like(tensor, value)), (tensor.flatten()[:4], value)


@case(1, 2, 3, 4)
def an_update_sums_what_was_put() -> None:
    bf.init(bf.ExponentialGraph)
    rank = bf.rank()
    for dtype in DTYPES:
        for number, shape in enumerate(SHAPES):
            name = f"{dtype}.{number}"
            tensor = _filled(rank, shape, dtype)
            assert bf.win_create(tensor, name, zero_init=True)
            assert bf.win_put(tensor, name)
            bf.barrier()
            sources = dict.fromkeys(bf.in_neighbor_ranks(), 2.0)
            updated = bf.win_update(name, 1.0, sources)
            assert updated is tensor
            _assert_all(tensor, rank + 2 * sum(sources))
    assert bf.win_free()


@case(1, 2, 4)
def an_update_averages_by_the_topology() -> None:
    bf.init(bf.RingGraph)
    rank = bf.rank()
    tensor = _filled(rank)
    bf.win_create(tensor, "w")
    bf.win_put(tensor, "w")
    bf.barrier()
    ranks = [rank, *bf.in_neighbor_ranks()]
    _assert_all(bf.win_update("w", clone=True), sum(ranks) / len(ranks))
    _assert_all(tensor, rank)
    bf.win_free("w")
    bf.set_topology(bf.StarGraph(bf.size()), is_weighted=True)
    own, weights = bf.GetRecvWeights(bf.load_topology(), rank)
    bf.win_create(tensor, "w")
    bf.win_put(tensor, "w")
    bf.barrier()
    expected = own * rank + sum(weight * source for source, weight in weights.items())
    assert torch.allclose(bf.win_update("w"), _filled(expected), rtol=1e-12, atol=0)
    bf.win_free()


@case(2, 4)
def buffers_begin_with_the_own_tensor_and_keep_their_value() -> None:
    bf.init()
    tensor = _filled(bf.rank() + 1)
    bf.win_create(tensor, "w")
    ones = dict.fromkeys(bf.in_neighbor_ranks(), 1.0)
    _assert_all(bf.win_update("w", 0.0, ones, clone=True), len(ones) * (bf.rank() + 1))
    _assert_all(bf.win_update("w", 0.0, ones, reset=True, clone=True), len(ones) * (bf.rank() + 1))
    _assert_all(bf.win_update("w", 0.0, ones, clone=True), 0)
    bf.win_free()


@case(2, 3, 4)
def a_subset_of_the_neighbors_counts_by_rank() -> None:
    bf.init(bf.FullyConnectedGraph)
    rank, size = bf.rank(), bf.size()
    tensor = _filled(10.0**rank)
    bf.win_create(tensor, "w", zero_init=True)
    for other in bf.out_neighbor_ranks():
        bf.win_put(tensor, "w", dst_weights={other: other + 1.0})
    bf.barrier()
    last = max(bf.in_neighbor_ranks())
    _assert_all(bf.win_update("w", 0.0, {last: 1.0}, clone=True), 10.0**last * (rank + 1))
    assert bf.get_win_version("w") == dict.fromkeys(bf.in_neighbor_ranks(), 0), "an update forgets all versions"
    assert size > 1
    bf.win_free()


@case(2, 4)
def versions_count_puts_and_gets() -> None:
    bf.init(bf.RingGraph)
    tensor = _filled(1)
    bf.win_create(tensor, "w")
    for _ in range(3):
        bf.win_put(tensor, "w")
    bf.win_accumulate(tensor, "w")
    bf.barrier()
    sources = bf.in_neighbor_ranks()
    assert bf.get_win_version("w") == dict.fromkeys(sources, 3)
    bf.win_get("w")
    assert bf.get_win_version("w") == dict.fromkeys(sources, 4)
    bf.win_update("w")
    assert bf.get_win_version("w") == dict.fromkeys(sources, 0)
    bf.win_free()


@case(2, 4)
def a_get_takes_the_tensor_as_it_is_now() -> None:
    bf.init(bf.RingGraph)
    tensor = _filled(0)
    bf.win_create(tensor, "w")
    tensor.fill_(bf.rank() + 5)  # known to the others by itself
    bf.barrier()
    bf.win_get("w", require_mutex=True)
    weights = dict.fromkeys(bf.in_neighbor_ranks(), 1.0)
    _assert_all(bf.win_update("w", 0.0, weights, clone=True), sum(rank + 5 for rank in weights))
    bf.win_wait(bf.win_get_nonblocking("w", dict.fromkeys(weights, 3.0)))
    _assert_all(bf.win_update("w", 0.0, weights, clone=True), 3 * sum(rank + 5 for rank in weights))
    bf.barrier()
    bf.win_free()


@case(2, 4)
def a_put_scales_its_tensor_afterwards_and_all_views_see_it() -> None:
    bf.init(bf.RingGraph)
    tensor = _filled(4)
    view = tensor.view(-1)[2:5]
    bf.win_create(tensor, "w", zero_init=True)
    bf.win_put(tensor, "w", 0.25)
    _assert_all(view, 1)
    strided = _filled(8, (3, 7)).t()
    bf.win_accumulate(strided, "w", 0.5)
    _assert_all(strided, 4)
    bf.barrier()
    bf.win_update_then_collect("w")
    _assert_all(view, 1 + 12 * len(bf.in_neighbor_ranks()))
    bf.win_free()


@case(2, 4)
def push_sum_reaches_the_mean_and_keeps_the_mass() -> None:
    """BlueFog's tutorial: accumulate and collect, with associated p; the sums are exact."""
    bf.init()
    rank, size = bf.rank(), bf.size()
    out = bf.out_neighbor_ranks()
    share = 1.0 / (len(out) + 1)
    tensor = _filled(1024.0 * (rank + 1))
    bf.turn_on_win_ops_with_associated_p()
    try:
        bf.win_create(tensor, "x", zero_init=True)
        for round_ in range(60):
            bf.win_accumulate(tensor, "x", share, dict.fromkeys(out, share), require_mutex=True)
            if round_ >= 20:  # before that each goes at its own pace, and a fast one gives nearly all away
                bf.barrier()
            bf.win_update_then_collect("x")
        bf.barrier()
        bf.win_update_then_collect("x")
        p = bf.win_associated_p("x")
        sums = bf.allreduce(torch.tensor([tensor[0, 0].item(), p], dtype=torch.float64), average=False)
        assert abs(sums[0].item() - 1024 * size * (size + 1) / 2) < 1e-9, sums
        assert abs(sums[1].item() - size) < 1e-12, sums
        assert torch.allclose(tensor / p, _filled(1024 * (size + 1) / 2), rtol=1e-9), (tensor[0, 0], p)
    finally:
        bf.turn_off_win_ops_with_associated_p()
    bf.win_free()


@case(2, 4)
def sums_of_whole_numbers_are_exact_in_any_order() -> None:
    bf.init(bf.FullyConnectedGraph)
    rank, size = bf.rank(), bf.size()
    tensor = torch.zeros(1000, dtype=torch.float64)
    bf.win_create(tensor, "w", zero_init=True)
    handles = []
    for round_ in range(200):
        source = torch.full((1000,), float(rank + 1), dtype=torch.float64)
        locks = (round_ + rank) % 3 == 0
        if round_ % 2:
            bf.win_accumulate(source, "w", require_mutex=locks)
        else:
            handles.append(bf.win_accumulate_nonblocking(source, "w", require_mutex=locks))
        if round_ % 5 == 0:
            bf.win_update_then_collect("w", require_mutex=locks)
    assert all(bf.win_wait(handle) for handle in handles)
    bf.barrier()
    bf.win_update_then_collect("w")
    _assert_all(tensor, 200 * (sum(range(1, size + 1)) - rank - 1))
    bf.win_free()


@case(2)
def mutexes_keep_writer_and_owner_apart() -> None:
    bf.init()
    other = 1 - bf.rank()
    tensor = _filled(bf.rank())
    bf.win_create(tensor, "w")
    if bf.rank() == 0:
        with bf.win_mutex("w", for_self=True):
            bf.barrier()
            bf.barrier()
    else:
        bf.barrier()
        handle = bf.win_put_nonblocking(tensor, "w", require_mutex=True)
        assert not bf.win_poll(handle), "it was put while the owner held the mutex"
        bf.win_put(tensor, "w")  # without a mutex: waits for nothing
        bf.barrier()
        assert bf.win_wait(handle)
    bf.barrier()
    # In turns, because each rank takes the mutexes of both edges, and in another order than the other rank.
    for turn in range(2):
        if turn == bf.rank():
            with bf.win_mutex("w", ranks=[other]), bf.win_lock("w"):
                text = "holds the window's mutex already"
                raises(FailedPrecondition, text, lambda: bf.win_update("w", require_mutex=True))
        bf.barrier()
    with bf.win_mutex([other]):
        pass
    bf.win_update("w", require_mutex=True)
    bf.barrier()
    bf.win_free()


@case(2)
def a_mutex_in_several_threads_is_one() -> None:
    bf.init()
    bf.win_create(_filled(0), "w")
    inside, most = 0, 0

    def enter() -> None:
        nonlocal inside, most
        for _ in range(50):
            with bf.win_mutex("w"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    bf.barrier()
    bf.win_free()


@case(2)
def a_call_that_blocks_comes_after_those_in_the_background() -> None:
    bf.init()
    other = 1 - bf.rank()
    for write, sum_of_all in ((bf.win_accumulate, 11.0), (bf.win_put, 10.0)):
        large, small = torch.zeros(1 << 22), torch.zeros(1, dtype=torch.float64)
        assert bf.win_create(large, "large") and bf.win_create(small, "small", zero_init=True)
        under_way = bf.win_put_nonblocking(torch.ones(1 << 22), "large")
        first = bf.win_put_nonblocking(torch.ones(1, dtype=torch.float64), "small")
        write(torch.full((1,), 10.0, dtype=torch.float64), "small")
        assert bf.win_wait(under_way) and bf.win_wait(first)
        bf.barrier()
        assert bf.win_update("small", self_weight=0.0, neighbor_weights={other: 1.0}).item() == sum_of_all
        bf.barrier()
        bf.win_free()


@case(2)
def it_comes_after_those_that_take_a_mutex_which_is_free() -> None:
    bf.init()
    other = 1 - bf.rank()
    large, small = torch.zeros(1 << 22), torch.zeros(1)
    assert bf.win_create(large, "large") and bf.win_create(small, "small")
    for require_mutex in (True, False):  # of the last one; one that takes mutexes is before it in both
        under_way = bf.win_put_nonblocking(torch.ones(1 << 22), "large", require_mutex=True)
        first = bf.win_put_nonblocking(torch.ones(1), "small", require_mutex=require_mutex)
        bf.win_put(torch.full((1,), 10.0), "small")
        assert bf.win_wait(under_way) and bf.win_wait(first)
        bf.barrier()
        assert bf.win_update("small", self_weight=0.0, neighbor_weights={other: 1.0}).item() == 10.0
        bf.barrier()
    bf.win_free()


@case(2)
def autograd_is_told_of_what_windows_write() -> None:
    bf.init()
    weight = torch.ones(3, requires_grad=True)
    assert bf.win_create(weight, "w")
    writes: list[Callable[[], object]] = [
        lambda: bf.win_update("w"),
        lambda: bf.win_put(weight, "w", self_weight=0.5),
        lambda: bf.win_accumulate(weight, "w", self_weight=0.5),
    ]
    for write in writes:
        square = (weight * weight).sum()
        write()
        raises(RuntimeError, "modified by an inplace operation", square.backward)
    square = (weight * weight).sum()
    bf.win_put(weight, "w")  # sends it as it is
    bf.win_update("w", clone=True)
    square.backward()
    bf.barrier()
    bf.win_free()


@case(2)
def a_handle_of_a_window_is_none_of_an_operation() -> None:
    bf.init()
    assert bf.win_create(_filled(0), "w")
    put = bf.win_put_nonblocking(_filled(0), "w")
    operation = bf.allreduce_nonblocking(torch.ones(2))
    raises(InvalidArgument, f"handle={put}: is none of an operation", lambda: bf.wait(put))
    assert torch.equal(bf.synchronize(operation), torch.ones(2))
    assert bf.win_wait(put)
    bf.barrier()
    bf.win_free()


@case(2)
def ranks_free_the_same_windows() -> None:
    bf.init()
    tensors = {name: torch.zeros(2) for name in "ab"}
    for name, tensor in tensors.items():
        assert bf.win_create(tensor, name)
    rank = bf.rank()
    names = r'win_free: rank 0 frees \["a"\] and rank 1 \["b"\]; all ranks must free the same'
    raises(InvalidArgument, names, lambda: bf.win_free("ab"[rank]))
    kind, text = (KeyError, "'c'") if rank == 1 else (InvalidArgument, "rank 1 of the group: .*'c'")
    raises(kind, text, lambda: bf.win_free("ac"[rank]))
    assert bf.get_current_created_window_names() == ["a", "b"]
    assert bf.win_free() and bf.get_current_created_window_names() == []


@case(2, 3)
def what_is_wrong_is_an_error() -> None:
    bf.init(bf.RingGraph)
    rank, size = bf.rank(), bf.size()
    raises(KeyError, "there is no window of that name; there are: none", lambda: bf.win_put(_filled(0), "w"))
    raises(KeyError, "'w'", lambda: bf.win_free("w"))
    tensor = _filled(0)
    assert bf.win_create(tensor, "w")
    assert not bf.win_create(tensor, "w")
    raises(
        ValueError,
        rf"rank\(s\) \[{rank}\] are no neighbors in this window",
        lambda: bf.win_put(tensor, "w", dst_weights={rank: 1.0}),
    )
    raises(ValueError, "give both or none", lambda: bf.win_update("w", self_weight=0.5))
    raises(ValueError, "must map ranks", lambda: bf.win_get("w", [0]))  # type: ignore[arg-type]  # what is tested
    raises(ValueError, r"is \[3\] of float32; window 'w' has \[7, 3\]", lambda: bf.win_put(torch.zeros(3), "w"))
    raises(ValueError, r"is \[7, 3\] of float32", lambda: bf.win_put(torch.zeros(7, 3), "w"))
    for shape in ((3, 7), (7, 3, 1), (21,)):
        for write in (bf.win_put, bf.win_accumulate, bf.win_put_nonblocking, bf.win_accumulate_nonblocking):
            call = functools.partial(write, _filled(0, shape), "w")
            raises(InvalidArgument, re.escape(f"is {list(shape)} of float64; window 'w' has [7, 3]"), call)
    wrong = _filled(0).t() if rank == 1 else _filled(0)
    raises(ValueError, r"tensor: is not contiguous; call this with a copy", lambda: bf.win_create(wrong, "t"))
    negated = torch._neg_view(_filled(0))
    raises(ValueError, r"resolve_neg\(\).*copy_\(\) it back", lambda: bf.win_create(negated, "t"))
    raises(
        InvalidArgument,
        r"\[2\] of float32 on rank 0 and \[3\]",
        lambda: bf.win_create(torch.zeros(2 + (rank == 1)), "s"),
    )
    raises(InvalidArgument, "rank 0 makes window 'a' and rank 1 'b'", lambda: bf.win_create(tensor, "ab"[min(rank, 1)]))
    assert bf.get_current_created_window_names() == ["w"]
    assert bf.win_wait(-1) is False and bf.win_poll(-1) is False
    assert size > 1
    bf.win_free()


@case(1, 2)
def the_topology_stays_while_there_are_windows() -> None:
    bf.init()
    before = bf.load_topology()
    bf.win_create(_filled(0), "a")
    bf.win_create(_filled(0), "b")
    assert bf.get_current_created_window_names() == ["a", "b"]
    assert bf.set_topology(bf.FullyConnectedGraph(bf.size())) is False
    assert bf.IsTopologyEquivalent(before, bf.load_topology())
    bf.win_free("a")
    assert bf.set_topology(bf.FullyConnectedGraph(bf.size())) is False
    bf.win_free()
    assert bf.set_topology(bf.FullyConnectedGraph(bf.size())) is True


@case(1, 2)
def init_says_that_there_are_windows() -> None:
    bf.init(bf.RingGraph)
    before = bf.load_topology()
    bf.win_create(_filled(0), "w")
    for error in (ValueError, FailedPrecondition):
        raises(error, r"there are windows \(w\).*call win_free\(\)", lambda: bf.init(bf.StarGraph))
    assert bf.IsTopologyEquivalent(before, bf.load_topology())
    bf.win_free()
    bf.init(bf.FullyConnectedGraph)
    assert bf.IsTopologyEquivalent(bf.FullyConnectedGraph(bf.size()), bf.load_topology())


def _replace_data(module: torch.nn.Linear) -> None:
    module.weight.data = _filled(9)


def _convert_there_and_back(module: torch.nn.Linear) -> None:
    module.float()
    module.double()


def _grow(module: torch.nn.Linear) -> None:
    module.weight.data.resize_(70, 3)


def _grow_and_shrink(module: torch.nn.Linear) -> None:
    module.weight.data.untyped_storage().resize_(1 << 20)
    module.weight.data.untyped_storage().resize_(7 * 3 * 8)


def _shrink(module: torch.nn.Linear) -> None:
    module.weight.data = module.weight.data[:2]


def _fuse(module: torch.nn.Linear) -> None:
    other = torch.nn.Linear(4, 4).double()
    fuse_optimizer(torch.optim.SGD([*module.parameters(), *other.parameters()], lr=0.1))


@case(2)
def a_tensor_whose_memory_was_replaced_is_an_error() -> None:
    bf.init()
    for number, move in enumerate((_replace_data, _convert_there_and_back, _grow, _grow_and_shrink, _shrink, _fuse)):
        module = torch.nn.Linear(3, 7, bias=False).double()
        torch.nn.init.constant_(module.weight, 4.0)
        name = f"w{number}"
        bf.win_create(module.weight, name)
        bf.barrier()
        move(module)
        calls: list[Callable[[], object]] = [
            functools.partial(bf.win_put, _filled(0), name),
            functools.partial(bf.win_put_nonblocking, _filled(0), name),
            functools.partial(bf.win_accumulate, _filled(0), name, require_mutex=True),
            functools.partial(bf.win_get, name),
            functools.partial(bf.win_get_nonblocking, name),
            functools.partial(bf.win_update, name),
            functools.partial(bf.win_update, name, clone=True),
            functools.partial(bf.win_update_then_collect, name),
        ]
        for call in calls:
            raises(ValueError, f"window '{name}': the memory of its tensor has been replaced or resized", call)
        bf.win_free(name)
        anew = _filled(bf.rank())
        assert bf.win_create(anew, name)
        bf.win_put(anew, name)
        bf.barrier()
        assert bf.win_update(name) is anew
        _assert_all(anew, 0.5)
        bf.win_free(name)


@case(2)
def a_get_reads_the_memory_that_a_window_was_made_over() -> None:
    """A rank that has not heard that its neighbor's tensor moved reads what was there, and no stranger's memory."""
    bf.init()
    rank, other = bf.rank(), 1 - bf.rank()
    for number, move in enumerate((_replace_data, _grow, _grow_and_shrink)):
        module = torch.nn.Linear(3, 7, bias=False).double()
        torch.nn.init.constant_(module.weight, 4.0)
        name = f"w{number}"
        bf.win_create(module.weight, name)
        if rank == 0:
            move(module)
            strangers = [_filled(9) for _ in range(100)]  # of the size that would have become free
            assert len(strangers) == 100
        bf.barrier()
        if rank == 1:
            bf.win_get(name)
            _assert_all(bf.win_update(name, 0.0, {other: 1.0}, clone=True), 4)
        bf.win_free(name)


@case(2)
def mass_stays_while_scaling_and_collecting_overlap() -> None:
    """Non-blocking accumulates scale the window's own tensor in one thread while this one collects into it."""
    bf.init()
    other = 1 - bf.rank()
    bf.turn_on_win_ops_with_associated_p()
    try:
        for number, uses_mutexes in enumerate((False, True)):
            tensor = torch.full((50000,), 1024.0 * (bf.rank() + 1), dtype=torch.float64)
            name = f"m{number}"
            bf.win_create(tensor, name, zero_init=True)
            write = functools.partial(bf.win_accumulate_nonblocking, tensor, name, 0.75, {other: 0.25}, uses_mutexes)
            for _ in range(10):
                handles = [write() for _ in range(30)]
                while not bf.win_poll(handles[-1]):
                    bf.win_update_then_collect(name, require_mutex=uses_mutexes)
                assert all(bf.win_wait(handle) for handle in handles)
            bf.barrier()
            bf.win_update_then_collect(name)
            total = bf.allreduce(tensor, average=False)
            assert torch.allclose(total, torch.full_like(total, 3 * 1024), rtol=1e-12, atol=0), total
            p = torch.tensor([bf.win_associated_p(name)], dtype=torch.float64)
            assert abs(bf.allreduce(p, average=False).item() - 2) < 1e-12
            bf.win_free(name)
    finally:
        bf.turn_off_win_ops_with_associated_p()


@case(2)
def older_names_and_signatures_work() -> None:
    bf.init()
    other = 1 - bf.rank()
    tensor = _filled(bf.rank() + 1)
    bf.win_create(tensor, "w", True)
    bf.win_put(tensor, "w", {other: 2.0}, True)
    bf.barrier()
    _assert_all(bf.win_sync("w", 0.0, {other: 1.0}, True, True), 2.0 * (other + 1))
    bf.barrier()
    assert bf.win_wait(bf.win_put_async(tensor, "w", {other: 3.0}))
    bf.win_wait(bf.win_accumulate_async(tensor, "w", None, True))
    bf.barrier()
    _assert_all(bf.win_sync_then_collect("w"), bf.rank() + 1 + 4.0 * (other + 1))
    assert mpi_ops.win_put is bf.win_put and bf.neighbor_win_get is bf.win_get
    bf.win_wait(bf.win_get_async("w"))
    bf.barrier()
    bf.win_free()


@case(2)
def windows_end_with_the_job() -> None:
    bf.init()
    bf.win_create(_filled(0), "w")
    bf.barrier()
    bf.shutdown()
    bf.init()
    assert bf.get_current_created_window_names() == []
    assert bf.win_create(_filled(1), "w")
    bf.win_free()
