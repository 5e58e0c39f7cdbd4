"""The interface of torch's DistributedDataParallel, held against torch's own; and collectives with gradients."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import warnings
from typing import Any, cast

import pelton
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as torch_functional
from pelton.errors import FailedPrecondition, InvalidArgument, Unsupported
from pelton.torch_api.algorithms import Algorithm, GlobalAlgorithmRegistry
from pelton.torch_api.algorithms.q_adam import QAdamOptimizer
from pelton.torch_api.data_parallel import DistributedDataParallel, DistributedDataParallel_V1_9_0
from pelton.torch_api.data_parallel.distributed import to_bagua_process_group
from pelton.torch_api.data_parallel.functional import ReduceOp, all_reduce, torch_reduce_op_to_bagua
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from cases.checks import batch, gradients, make_mlp, raises, rank_and_size, seeded, square_loss
from cases.registry import case
from cases.torch_world import torch_world


class _Net(nn.Module):
    """Has buffers that a forward pass changes, and a branch that it may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(16, 3) for _ in range(3))
        self.used: tuple[int, ...] = (0, 1, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(inputs)
        return torch.stack([self.heads[i](hidden) for i in self.used]).sum(0)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def _assert_same_states(ours: nn.Module, theirs: nn.Module) -> None:
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for (name, mine), wanted in zip(ours.state_dict().items(), theirs.state_dict().values()):
        assert torch.equal(mine, wanted), f"{name}: {(mine - wanted).abs().max()}"


# A mean of two has one order, so that both must agree to the bit.
@case(2)
def training_is_that_of_torchs() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        ours: Any = DistributedDataParallel(seeded(3 + rank, _Net))
        theirs: Any = TorchDistributedDataParallel(seeded(3 + rank, _Net))
        pairs = [(ours, _optimizer(ours)), (theirs, _optimizer(theirs))]
        for step in range(6):
            for model, optimizer in pairs:
                if step % 3 == 0:
                    optimizer.zero_grad()
                accumulates = step % 3 == 1
                with model.no_sync() if accumulates else contextlib.nullcontext():
                    square_loss(model, batch(rank, step, 8, 6)).backward()
                if not accumulates:
                    optimizer.step()
            _assert_same_states(ours, theirs)
        for model, _ in pairs:
            model.eval()
            with torch.no_grad():
                model(batch(rank, 9, 8, 6))
        _assert_same_states(ours, theirs)


@case(2)
def unused_parameters_are_those_of_torchs() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        ours: Any = DistributedDataParallel(seeded(rank, _Net), find_unused_parameters=True)
        theirs: Any = TorchDistributedDataParallel(seeded(rank, _Net), find_unused_parameters=True)
        pairs = [(ours, _optimizer(ours)), (theirs, _optimizer(theirs))]
        for step, used in enumerate(((0, 1) if rank == 0 else (0,), (0,), (1, 2), (0, 1, 2))):
            found = []
            for model, optimizer in pairs:
                model.module.used = used
                optimizer.zero_grad()
                square_loss(model, batch(rank, step, 8, 6)).backward()
                found.append(gradients(model))
                optimizer.step()
            assert {n for n, g in found[0].items() if g is None} == {n for n, g in found[1].items() if g is None}
            _assert_same_states(ours, theirs)


@case(2)
def the_interface() -> None:
    module: Any = make_mlp()
    optimizer = _optimizer(module)
    model: Any = DistributedDataParallel(module, optimizers=[optimizer])
    assert DistributedDataParallel_V1_9_0 in type(model).__mro__
    assert model.module is module
    assert model.inner is module.bagua_ddp
    assert list(model.state_dict()) == [f"module.{name}" for name in module.state_dict()]
    assert model.bagua_optimizers == [optimizer]
    assert model.bagua_algorithm is model.inner.bagua_algorithm
    assert [name for bucket in model.bagua_buckets for name in bucket.tensor_names] == list(module.state_dict())[::-1]
    assert model.parameters_to_ignore == []
    assert model.require_backward_grad_sync
    with model.no_sync():
        assert not model.require_backward_grad_sync
    assert not model.will_sync_module_buffers()  # it has none
    for call in ("gather", "scatter", "to_kwargs"):
        with raises(NotImplementedError, call):
            getattr(model, call)(*[None] * (2 if call == "gather" else 3))
    with raises(NotImplementedError, "register_comm_hook"):
        model.register_comm_hook(None, print)
    with raises(NotImplementedError, "join"):
        model.join()


def _pickled(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


# One rank alone makes and uses copies, so that anything collective about them would not end.
@case(2)
def copies_are_plain_models() -> None:
    rank, _ = rank_and_size()
    model: Any = DistributedDataParallel(seeded(3, _Net))
    if rank == 0:
        for copied in (copy.deepcopy(model), _pickled(model), AveragedModel(model).module):
            assert copied.inner is None and not copied.require_backward_grad_sync
            _assert_same_states(copied, model)
            plain = copy.deepcopy(model.module)
            inputs = batch(rank, 0, 8, 6)
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("error")
                assert torch.equal(copied(inputs), plain(inputs))  # as update_bn of torch's calls it
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    with copied.no_sync():
                        square_loss(copied, inputs).backward()
                    square_loss(plain, inputs).backward()
            assert [str(warning.message).count("is a copy") for warning in caught] == [1]
            _assert_same_states(copied.module, plain)
            for (name, mine), wanted in zip(gradients(copied).items(), gradients(plain).values()):
                assert torch.equal(mine, wanted), name
    square_loss(model, batch(rank, 0, 8, 6)).backward()


@case(2)
def arguments_that_are_wrong() -> None:
    frozen = make_mlp().requires_grad_(False)
    with raises(AssertionError, "no parameter that requires a gradient"):
        DistributedDataParallel(frozen)
    with raises(ValueError, "device_ids=[0, 1]"):
        DistributedDataParallel_V1_9_0(make_mlp(), device_ids=[0, 1])
    mixed = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, device="meta")])
    with raises(ValueError, "cpu, meta"):
        DistributedDataParallel(mixed)
    with raises(InvalidArgument, "process_group", "'world'"):
        DistributedDataParallel(make_mlp(), process_group="world")  # type: ignore[arg-type]


@case(2)
def buckets_are_of_the_size_that_was_asked_for() -> None:
    """By the environment, unless the argument is given: also as the number that the signature shows."""
    os.environ["BAGUA_DEFAULT_BUCKET_SIZE"] = "64"
    try:
        counts = [
            len(DistributedDataParallel(make_mlp(), **arguments).bagua_buckets)
            for arguments in ({}, {"bucket_cap_mb": None}, {"bucket_cap_mb": 25}, {"bucket_cap_mb": 6e-5})
        ]
    finally:
        del os.environ["BAGUA_DEFAULT_BUCKET_SIZE"]
    assert counts[0] == counts[1] == counts[3] > counts[2] == 1, counts


@case(2)
def arguments_of_torchs_class() -> None:
    rank, _ = rank_and_size()
    model = DistributedDataParallel(
        seeded(rank, _Net), broadcast_buffers=False, bucket_cap_mb=1e-4, static_graph=True, check_reduction=True
    )
    assert isinstance(model, DistributedDataParallel) and isinstance(model, DistributedDataParallel_V1_9_0)
    assert len(model.bagua_buckets) > 2, model.bagua_buckets
    square_loss(model, batch(rank, 0, 8, 6)).backward()
    own = model.module.trunk[1].running_mean.clone()  # type: ignore[union-attr,index]
    model(batch(rank, 1, 8, 6))
    everyones = torch.zeros(2, own.numel())
    bagua.allgather(own, everyones)
    assert not torch.equal(everyones[0], everyones[1])
    for arguments in ({"device_ids": [0]}, {"output_device": 0}, {"output_device": "meta"}):
        with raises(InvalidArgument, next(iter(arguments)), "is on cpu"):
            DistributedDataParallel(make_mlp(), **arguments)
    with raises(InvalidArgument, "dim=1"):
        DistributedDataParallel(make_mlp(), dim=1)
    with raises(Unsupported, "uneven inputs", "drop_last=True", "ReduceOp.MIN"):
        model.join()
    by_name = DistributedDataParallel(make_mlp(), algorithm="bytegrad", optimizers=_optimizer(make_mlp()))
    assert type(by_name.bagua_algorithm).__name__ == "ByteGradAlgorithmImpl"


class _Skipping(nn.Module):
    """Of which a batch may touch no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.skips = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * 2 if self.skips else cast(torch.Tensor, self.layer(inputs))


@case(2, 3)
def backward_passes_that_make_no_gradient_on_a_rank() -> None:
    """Several in a row, after one that made some: the others' gradients come by the round all the same."""
    rank, size = rank_and_size()
    model: Any = seeded(0, _Skipping)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pelton.wrap(model, optimizer)
    alone = seeded(0, _Skipping)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(5):
        model.skips = rank == 1 and step > 0
        optimizer.zero_grad()
        model(torch.full((2, 3), float(rank + step), requires_grad=True)).sum().backward()
        optimizer.step()
        plain.zero_grad()
        for other in range(size):
            if other != 1 or step == 0:
                (alone(torch.full((2, 3), float(other + step))).sum() / size).backward()
        plain.step()
    for mine, theirs in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(mine, theirs)


@case(2)
def the_short_names() -> None:
    model = seeded(rank_and_size()[0], make_mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with raises(InvalidArgument, "was not wrapped; pelton.wrap"):
        pelton.wrapping_of(model)
    assert pelton.wrap(model, optimizer, "local_sgd", interval=2) is model
    assert pelton.wrapping_of(model) is vars(model)["bagua_ddp"]
    assert (pelton.rank(), pelton.world_size()) == rank_and_size()
    assert model.bagua_algorithm.interval == 2 and model.bagua_optimizers == [optimizer]
    assert repr(model.bagua_ddp).startswith("BaguaDistributedDataParallel(Sequential_"), repr(model.bagua_ddp)
    adam = QAdamOptimizer(model.parameters(), warmup_steps=3)
    assert pelton.wrap(model, adam, "qadam").bagua_algorithm.optimizer is adam
    with raises(InvalidArgument, "algorithm local_sgd: option 'intervall' is unknown; there are: codec"):
        pelton.wrap(model, optimizer, "local_sgd", intervall=2)
    with raises(InvalidArgument, "there is no option codec: ranks stop together by an exact mean"):
        pelton.wrap(model, optimizer, "async", codec="one_bit")
    with raises(InvalidArgument, "interval", "options go with an algorithm's name"):
        pelton.wrap(model, optimizer, Algorithm.init("local_sgd"), interval=2)


@case(2)
def algorithms_by_the_runtimes_names() -> None:
    names = GlobalAlgorithmRegistry.available_algorithms()
    assert {"async", "async_model_average", "post_local_sgd"} <= set(names), names
    model = seeded(rank_and_size()[0], make_mlp)
    model.with_bagua([], Algorithm.init("async_model_average", sync_interval_ms=1))
    square_loss(model, batch(0, 0, 4, 6)).backward()
    model.bagua_ddp.stop_averaging()
    assert repr(Algorithm.init("bytegrad", hierarchical=False)).startswith("ByteGradAlgorithm(hierarchical=False")
    assert repr(Algorithm.init("async_model_average")) == "RuntimeAlgorithm(name='async_model_average', options={})"
    with raises(InvalidArgument, "pause_of"):
        make_mlp().with_bagua([], Algorithm.init("async_model_average", pause_of=1))


@case(2)
def a_wrapper_whose_module_is_wrapped_again_stands_for_that() -> None:
    rank, _ = rank_and_size()
    model: Any = seeded(0, make_mlp)
    held = DistributedDataParallel(model)
    model.with_bagua([], Algorithm.init("gradient_allreduce"))
    assert held.inner is pelton.wrapping_of(held) is model.bagua_ddp
    with held.no_sync():
        square_loss(held, batch(rank, 0, 4, 6)).backward()
    reference = seeded(0, make_mlp)
    square_loss(reference, batch(rank, 0, 4, 6)).backward()
    for name, gradient in gradients(reference).items():
        torch.testing.assert_close(gradients(model)[name], gradient)


@case(2)
def a_wrapper_says_why_the_last_wrapping_of_its_module_has_ended() -> None:
    model: Any = seeded(0, make_mlp)
    held = DistributedDataParallel(model)
    first = held.inner
    for _ in range(2):
        model.with_bagua([], Algorithm.init("gradient_allreduce"))
        with raises(FailedPrecondition, "it was wrapped again; call pelton.wrapping_of(model)"):
            first.consolidate()
    model.bagua_ddp.detach()
    for ended in (held.inner, first):
        with raises(FailedPrecondition, "it was detached; wrap it again on all ranks"):
            ended.consolidate()


@case(3)
def groups_of_either_kind() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        torchs = dist.new_group([0, 2])
        ours = bagua.new_group([0, 1])
        assert to_bagua_process_group(ours) is ours
        assert to_bagua_process_group(None).ranks == [0, 1, 2]
        if rank == 2:
            with raises(InvalidArgument, "this rank, 2, is not one of its ranks [0, 1]"):
                DistributedDataParallel(nn.Linear(4, 1), process_group=ours)
        for group, ranks in ((torchs, (0, 2)), (ours, (0, 1))):
            if rank not in ranks:
                continue
            assert isinstance(group, (dist.ProcessGroup, bagua.communication.BaguaProcessGroup))
            model: Any = DistributedDataParallel(nn.Linear(4, 1, bias=False), process_group=group)
            model(torch.full((1, 4), float(rank))).sum().backward()
            assert model.module.weight.grad.tolist() == [[sum(ranks) / 2] * 4]
            total = all_reduce(torch.ones(2), group=group)
            assert total.tolist() == [2, 2]
        bagua.barrier()  # a rank that leaves early would be missed


def _gradient(reduce: Any, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    tensor = batch(rank, 0, 5, 3).requires_grad_()
    result = reduce(tensor)
    (result * batch(rank, 1, 5, 3)).sum().backward()
    assert tensor.grad is not None
    return result.detach(), tensor.grad


@case(2, 3)
def all_reduce_has_torchs_gradients() -> None:
    rank, _ = rank_and_size()
    with torch_world():
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            ours = _gradient(lambda tensor, op=op: all_reduce(tensor, op), rank)
            theirs = _gradient(lambda tensor, op=op: torch_functional.all_reduce(tensor, op), rank)
            assert all(map(torch.equal, ours, theirs)), op
        whole = _gradient(lambda tensor: all_reduce(tensor.t(), group=dist.group.WORLD).t(), rank)
        assert torch.equal(whole[1], _gradient(all_reduce, rank)[1])


@case(2, 3)
def all_reduce_has_the_gradients_of_one_process() -> None:
    """Of the sum of all ranks' losses."""
    rank, size = rank_and_size()
    for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN):
        inputs = [batch(r, 0, 5, 3).round().requires_grad_() for r in range(size)]  # rounded: some are equal
        stacked = torch.stack(inputs)
        combined = {ReduceOp.SUM: stacked.sum(0), ReduceOp.AVG: stacked.mean(0), ReduceOp.MIN: stacked.amin(0)}[op]
        torch.stack([combined * batch(r, 1, 5, 3) for r in range(size)]).sum().backward()
        mine = batch(rank, 0, 5, 3).round().requires_grad_()
        result = all_reduce(mine, op)
        (result * batch(rank, 1, 5, 3)).sum().backward()
        assert torch.allclose(result, combined)
        wanted = inputs[rank].grad
        assert mine.grad is not None
        assert wanted is not None
        assert torch.allclose(mine.grad, wanted), op


@case(2)
def all_reduce_of_other_kinds() -> None:
    assert torch_reduce_op_to_bagua(dist.ReduceOp.BXOR) is ReduceOp.BXOR
    with raises(Unsupported, "PRODUCT"):
        all_reduce(torch.ones(2), dist.ReduceOp.PRODUCT)
    with raises(InvalidArgument, "op="):
        all_reduce(torch.ones(2), 77)
    with raises(InvalidArgument, "tensor"):
        all_reduce([1.0])  # type: ignore[arg-type]
