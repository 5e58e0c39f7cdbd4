"""Registered tensors, and the buckets that they are put into."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pelton._C
import pelton.torch_api as bagua
import torch
from pelton.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, PeltonError
from pelton.torch_api.algorithms import AlgorithmImpl
from pelton.torch_api.bucket import BaguaBucket
from torch import nn

from cases.checks import assert_same, expected, gradients, make_mlp, raises, rank_and_size, run_backward, seeded
from cases.registry import NotRun, case
from cases.user_algorithms import Centralized, Written


def _registered(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
    tensor: Any = torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(dtype)
    return tensor.ensure_bagua_tensor(name, "model")


@case(2)
def proxies_and_their_effective_tensors() -> None:
    plain: Any = torch.ones(2)
    assert not plain.is_bagua_tensor()
    assert not hasattr(plain, "bagua_tensor_name")
    with raises(AttributeError, "not registered"):
        plain.bagua_getter_closure()
    assert plain.ensure_bagua_tensor("t", "model") is plain
    assert plain.is_bagua_tensor()
    assert (plain.bagua_tensor_name, plain.bagua_module_name) == ("t", "model")
    assert plain.bagua_getter_closure() is plain
    with raises(AssertionError, "'t'", "'u'"):
        plain.ensure_bagua_tensor("u")
    with raises(NotFound, "'model'"):
        _ = plain.bagua_backend
    with raises(FailedPrecondition, "'t'", "no registered bucket"):
        plain.bagua_mark_communication_ready()

    parameter: Any = nn.Parameter(torch.ones(3))
    assert parameter.bagua_ensure_grad() is parameter
    assert parameter.grad.tolist() == [0, 0, 0]

    def set_gradient(proxy: torch.Tensor, value: torch.Tensor | None) -> None:
        proxy.grad = value

    parameter.ensure_bagua_tensor("p", "model", lambda proxy: proxy.grad, set_gradient)
    backend = parameter.bagua_backend_tensor()
    assert (backend.name, backend.data_ptr(), backend.num_elements()) == ("p", parameter.grad.data_ptr(), 3)
    parameter.bagua_setter_closure(torch.full((3,), 5.0))
    assert parameter.bagua_getter_closure().tolist() == [5, 5, 5]
    storage = torch.arange(10.0)
    parameter.bagua_set_storage(storage.untyped_storage(), 4)
    assert parameter.grad.tolist() == [4, 5, 6]
    storage[4] = -1
    assert parameter.grad.tolist() == [-1, 5, 6]

    shared = parameter.to_bagua_tensor("q", "model")
    assert shared is not parameter
    assert shared.data_ptr() == parameter.data_ptr()
    assert parameter.bagua_tensor_name == "p"
    with raises(InvalidArgument, "leaf"):
        (parameter * 2).bagua_ensure_grad()


@case(2)
def flattened_buckets() -> None:
    first, second = _registered("a", 2, 3), _registered("b", 5)
    column = _registered("c", 3, 2)
    column.set_(column.t())  # dense, but of other strides
    before = [tensor.clone() for tensor in (first, second, column)]
    loose = BaguaBucket([first, second, column], "loose", flatten=False)
    assert not loose.check_flatten()
    assert loose.padding_tensor is None
    bucket = BaguaBucket([first, second, column], "flat", flatten=True, alignment=4)
    assert bucket.check_flatten()
    assert bucket.padding_tensor.tolist() == [0, 0, 0]
    assert bucket.bytes() == 20 * 4
    assert all(map(torch.equal, (first, second, column), before))
    assert column.stride() == before[2].t().contiguous().t().stride()
    flat = bucket.flattened_tensor()
    assert flat.numel() == 20
    assert flat[:11].tolist() == [*before[0].flatten().tolist(), *before[1].tolist()]
    assert flat.data_ptr() != first.data_ptr()
    assert bucket.backend_tensor is not None
    assert torch.equal(bucket.backend_tensor, flat)
    bucket.backend_tensor.fill_(7)
    assert first.unique().tolist() == second.unique().tolist() == [7]
    second.set_(torch.ones(5))
    assert not bucket.check_flatten()


@case(2)
def buckets_that_cannot_be() -> None:
    for tensors, text in (
        ([], "no tensors"),
        ([_registered("a", 2), _registered("b", 2, dtype=torch.float64)], "'b' is of torch.float64"),
        ([_registered("a", 2), torch.ones(2).ensure_bagua_tensor("c", "other")], "'other'"),  # type: ignore[attr-defined]
    ):
        with raises(InvalidArgument, "bucket 'x'", text):
            BaguaBucket(tensors, "x", flatten=True)
    with raises(AttributeError, "not registered"):
        BaguaBucket([torch.ones(2)], "x", flatten=True)
    with raises(InvalidArgument, "alignment=0"):
        BaguaBucket([_registered("a", 2)], "x", flatten=True, alignment=0)
    bucket = BaguaBucket([_registered("a", 2)], "x", flatten=True)
    with raises(InvalidArgument, "peer_weight has 3 elements", "2 elements"):
        bucket.append_decentralized_synchronous_op(torch.ones(3))
    with raises(InvalidArgument, "peer_selection_mode='some'"):
        bucket.append_asynchronous_model_average_op("some")


@case(2)
def gradients_come_back_to_their_bucket() -> None:
    model = seeded(bagua.get_rank(), make_mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.with_bagua([optimizer], Written(_appending(lambda bucket: bucket.append_centralized_synchronous_op())))
    (bucket,) = model.bagua_buckets
    assert bucket.check_flatten()
    run_backward(model)
    assert bucket.check_flatten()
    optimizer.zero_grad(set_to_none=False)
    assert bucket.check_flatten()
    optimizer.zero_grad(set_to_none=True)
    assert not bucket.check_flatten()
    copied = model.bagua_ddp.statistics()["copied_bytes"]
    run_backward(model)
    assert bucket.check_flatten()
    assert bucket.backend_tensor.data_ptr() == bucket.tensors[0].grad.data_ptr()
    assert model.bagua_ddp.statistics()["copied_bytes"] == copied + sum(p.nbytes for p in model.parameters())
    assert_same(gradients(model), expected(make_mlp))


def _appending(append: Callable[[BaguaBucket], Any]) -> Callable[[Any], AlgorithmImpl]:
    """Makes implementations of which `append` fills each bucket."""

    class Made(AlgorithmImpl):
        def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
            bucket.clear_ops()
            append(bucket)

    return Made


@case(2)
def marks_that_are_wrong() -> None:
    model = seeded(0, make_mlp).with_bagua([], Written(Centralized))
    backend = model.bagua_ddp._bagua_backend
    assert bagua.get_backend(model.bagua_module_name).model_name == backend.model_name
    assert backend.wait_pending_comm_ops() == 0
    first, *others = model.parameters()
    first.bagua_mark_communication_ready()
    with raises(AlreadyExists, f"'{first.bagua_tensor_name}'", "second time"):
        first.bagua_mark_communication_ready_without_synchronization()
    for parameter in others:
        backend.mark_communication_ready(parameter.bagua_backend_tensor(), None)
    assert backend.wait_pending_comm_ops() == 4
    buckets = list(model.bagua_buckets)
    backend.register_ordered_buckets([bucket.backend_bucket for bucket in buckets[::-1]])
    assert model.bagua_buckets == buckets[::-1]
    run_backward(model)
    assert_same(gradients(model), expected(make_mlp))
    with raises(InvalidArgument, "two buckets are named"):
        backend.register_ordered_buckets([buckets[0], buckets[0]])


@case(2)
def operations_that_differ_between_ranks() -> None:
    rank, _ = rank_and_size()
    algorithm = _appending(lambda bucket: bucket.append_centralized_synchronous_op(average=rank == 0))
    with raises(FailedPrecondition, "average=true", "average=false"):
        make_mlp().with_bagua([], Written(algorithm))


class _OfWeights(AlgorithmImpl):
    """Communicates the weights when it is told to, in one bucket."""

    def __init__(self, process_group: Any, append: Callable[[BaguaBucket], Any]) -> None:
        super().__init__(process_group)
        self.append = append

    def init_tensors(self, bagua_ddp: Any) -> Any:
        named: Any = bagua_ddp.bagua_build_params()
        return [p.ensure_bagua_tensor(name, bagua_ddp.bagua_module_name) for name, p in named]

    def init_backward_hook(self, bagua_ddp: Any) -> Any:
        return lambda name, parameter: None

    def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
        self.handle = self.append(bucket)


def _of_weights(algorithm: str, append: Callable[[BaguaBucket], Any]) -> Any:
    """A model of 7 weights, each rank's its number; not run where the runtime has no such algorithm."""
    if algorithm not in dict(pelton._C.algorithms()):
        raise NotRun(f"no {algorithm}")
    model: Any = nn.Linear(7, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    model.with_bagua([], Written(lambda group: _OfWeights(group, append)))
    with torch.no_grad():
        model.weight.fill_(bagua.get_rank())
    return model


def _mark_and_wait(model: Any) -> None:
    for bucket in model.bagua_buckets:
        for tensor in bucket.tensors:
            tensor.bagua_mark_communication_ready()
    model.bagua_ddp._bagua_backend.wait_pending_comm_ops()


@case(2, 3)
def scatter_gather_is_the_same_mean() -> None:
    rank, size = rank_and_size()
    choices: Any = (("gradient_allreduce", {}), ("bytegrad", {"compression": "MinMaxUInt8"}))
    for algorithm, options in choices:
        append = functools.partial(BaguaBucket.append_centralized_synchronous_op, scattergather=True, **options)
        model = _of_weights(algorithm, append)
        _mark_and_wait(model)
        assert torch.allclose(model.weight, torch.full((1, 7), (size - 1) / 2), atol=1e-5), (rank, model.weight)


@case(2, 3)
def a_decentralized_operation_leaves_the_bucket_alone() -> None:
    rank, size = rank_and_size()
    for mode in ("all", "shift_one"):
        peer_weight: Any = torch.zeros(7)
        append = functools.partial(
            BaguaBucket.append_decentralized_synchronous_op,
            peer_weight=peer_weight.ensure_bagua_tensor("peer_weight"),
            hierarchical=False,
            peer_selection_mode=mode,
        )
        model = _of_weights("decentralized", append)
        _mark_and_wait(model)
        assert model.weight.unique().tolist() == [rank]
        if mode == "all" or size == 2:
            assert torch.allclose(peer_weight, torch.full((7,), (size - 1) / 2))
        (bucket,) = model.bagua_buckets
        model.bagua_algorithm.handle.copy_back_peer_weight(bucket.backend_bucket)
        assert torch.equal(model.weight.detach().flatten(), peer_weight)
        total = model.weight.detach().clone()
        bagua.allreduce_inplace(total)
        assert torch.allclose(total, torch.full((1, 7), size * (size - 1) / 2))  # the mean stays


@case(2)
def peers_that_the_coordinator_chooses_are_no_buckets() -> None:
    for mode in ("random_matching", "latency_aware", "avoid_stragglers"):
        peer_weight: Any = torch.zeros(7)
        append = functools.partial(
            BaguaBucket.append_decentralized_synchronous_op,
            peer_weight=peer_weight.ensure_bagua_tensor("peer_weight"),
            hierarchical=False,
            peer_selection_mode=mode,
        )
        with raises(InvalidArgument, "bucket 0", mode, "whole model"):
            _of_weights("decentralized", append)


@case(2, 3)
def a_low_precision_operation_keeps_the_users_replicas() -> None:
    rank, size = rank_and_size()
    replicas = [torch.zeros(7) for _ in range(3)]

    def append(bucket: BaguaBucket) -> Any:
        weight, left, right = replicas
        return bucket.append_low_precision_decentralized_synchronous_op(weight, left, right, hierarchical=False)

    model = _of_weights("low_precision_decentralized", append)
    _mark_and_wait(model)
    assert torch.allclose(model.weight, torch.full((1, 7), float(rank)), atol=1e-3)  # w + D(x - 0)
    assert torch.equal(model.weight.detach().flatten(), replicas[0])
    everyones = torch.zeros(size, 7)
    bagua.allgather(replicas[0], everyones)
    assert torch.equal(replicas[1], everyones[(rank - 1) % size])
    assert torch.equal(replicas[2], everyones[(rank + 1) % size])
    replicas[1].fill_(9)  # the user's to change: this rank believes its neighbour to be elsewhere
    _mark_and_wait(model)
    pulled = rank + (9 + float(everyones[(rank + 1) % size, 0]) - 2 * rank) / 3
    assert torch.allclose(model.weight, torch.full((1, 7), pulled), atol=1e-2), (model.weight, pulled)


@case(1, 2, 3)
def a_low_precision_operation_of_one_host_is_the_hosts_mean() -> None:
    _, size = rank_and_size()
    replicas = [torch.full((7,), 9.0) for _ in range(3)]

    def append(bucket: BaguaBucket) -> Any:
        weight, left, right = replicas
        return bucket.append_low_precision_decentralized_synchronous_op(weight, left, right, compression="one_bit")

    model = _of_weights("low_precision_decentralized", append)
    for _ in range(2):
        _mark_and_wait(model)
        assert torch.allclose(model.weight, torch.full((1, 7), (size - 1) / 2)), model.weight
    for replica in replicas:
        assert replica.unique().tolist() == [9]  # no other host has told anything


@case(2)
def an_asynchronous_average_keeps_updates_made_meanwhile() -> None:
    rank, _ = rank_and_size()
    model = _of_weights("async_model_average", lambda bucket: bucket.append_asynchronous_model_average_op("all"))
    operation = model.bagua_algorithm.handle
    (bucket,) = model.bagua_buckets
    operation.lock_weight()
    with raises(FailedPrecondition, "lock"):
        operation.lock_weight()
    for tensor in bucket.tensors:
        tensor.bagua_mark_communication_ready_without_synchronization()
    with torch.no_grad():
        model.weight.add_(10)  # while the average is on its way: it cannot land before the lock is given back
    operation.unlock_weight()
    model.bagua_ddp._bagua_backend.wait_pending_comm_ops()
    assert model.weight.unique().tolist() == [10.5]
    assert operation.get_status()
    if rank == 0:
        operation.abort()
    _mark_and_wait(model)
    assert operation.get_status()  # one rank is not all
    operation.abort()
    _mark_and_wait(model)
    assert not operation.get_status()
    with torch.no_grad():
        model.weight.fill_(rank)
    _mark_and_wait(model)
    assert model.weight.unique().tolist() == [rank]
    operation.reset()
    _mark_and_wait(model)
    assert model.weight.unique().tolist() == [0.5]


class _BucketPerWeight(_OfWeights):
    def tensors_to_buckets(self, tensors: Any, do_flatten: bool) -> list[BaguaBucket]:
        return [BaguaBucket([t], t.bagua_tensor_name, do_flatten) for group in tensors for t in group]


@case(2)
def an_asynchronous_average_lands_in_all_buckets_or_in_none() -> None:
    rank, _ = rank_and_size()
    appended: list[str] = []
    fails: list[bool] = []

    def fail(name: str) -> None:
        if fails:
            raise ZeroDivisionError(name)

    def append(bucket: BaguaBucket) -> Any:
        appended.append(bucket.name)
        if len(appended) == 3:
            return bucket.append_python_op(fail)
        return bucket.append_asynchronous_model_average_op("all")

    model: Any = nn.Sequential(*(nn.Linear(7, 7, bias=False) for _ in range(3)))
    model.with_bagua([], Written(lambda group: _BucketPerWeight(group, append)))
    for weight in model.parameters():
        weight.data.fill_(rank)
    _mark_and_wait(model)
    assert [weight.unique().tolist() for weight in model.parameters()] == [[0.5], [0.5], [rank]]
    for weight in model.parameters():
        weight.data.fill_(rank)
    fails.append(True)
    with contextlib.suppress(ZeroDivisionError, PeltonError):  # of this rank's own function, or of the other's
        _mark_and_wait(model)
    with contextlib.suppress(ZeroDivisionError, PeltonError):
        model.bagua_ddp.finish_round()
        raise AssertionError("the round has not failed")
    assert [weight.unique().tolist() for weight in model.parameters()] == [[rank], [rank], [rank]]


@case(2)
def a_round_that_fails_leaves_peer_weights_and_replicas() -> None:
    rank, _ = rank_and_size()
    peer_weight: Any = torch.full((49,), 7.0)
    replicas = [torch.zeros(49) for _ in range(3)]
    appended: list[str] = []
    fails: list[bool] = []

    def fail(name: str) -> None:
        if fails:
            raise ZeroDivisionError(name)

    def append(bucket: BaguaBucket) -> Any:
        appended.append(bucket.name)
        if len(appended) == 1:
            tensor = peer_weight.ensure_bagua_tensor("peer_weight")
            return bucket.append_decentralized_synchronous_op(tensor, hierarchical=False, peer_selection_mode="all")
        if len(appended) == 2:
            weight, left, right = replicas
            return bucket.append_low_precision_decentralized_synchronous_op(weight, left, right, hierarchical=False)
        return bucket.append_python_op(fail)

    model: Any = nn.Sequential(*(nn.Linear(7, 7, bias=False) for _ in range(3)))
    model.with_bagua([], Written(lambda group: _BucketPerWeight(group, append)))
    for weight in model.parameters():
        weight.data.fill_(rank)
    _mark_and_wait(model)
    assert peer_weight.unique().tolist() == [0.5]
    assert torch.equal(replicas[0].round(), torch.full((49,), float(rank)))
    before = [tensor.clone() for tensor in (peer_weight, *replicas)]
    for weight in model.parameters():
        weight.data.fill_(rank + 5)
    fails.append(True)
    with contextlib.suppress(ZeroDivisionError, PeltonError):  # of this rank's own function, or of the other's
        _mark_and_wait(model)
    for tensor, kept in zip((peer_weight, *replicas), before):
        assert torch.equal(tensor, kept), (tensor, kept)


@case(2)
def padding_counts_as_ready() -> None:
    rank, _ = rank_and_size()

    class Padded(AlgorithmImpl):
        def tensors_to_buckets(self, tensors: Any, do_flatten: bool) -> Any:
            return [BaguaBucket(group, str(i), do_flatten, alignment=64) for i, group in enumerate(tensors)]

        def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
            bucket.append_centralized_synchronous_op(average=True)

    model = seeded(rank, make_mlp).with_bagua([], Written(Padded))
    (bucket,) = model.bagua_buckets
    assert bucket.padding_tensor is not None
    assert bucket.flattened_tensor().numel() % 64 == 0
    for step in range(2):
        model.zero_grad()
        run_backward(model, step)
        assert_same(gradients(model), expected(make_mlp, step))
        assert not bucket.padding_tensor.any()
