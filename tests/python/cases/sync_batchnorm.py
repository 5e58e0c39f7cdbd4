"""SyncBatchNorm on several ranks equals BatchNorm on their batches joined."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton._training import communication
from pelton.errors import FailedPrecondition, InvalidArgument
from pelton.torch_api.contrib.sync_batchnorm import SyncBatchNorm
from torch import nn

from cases.checks import assert_same_on_all_ranks, batch, raises, rank_and_size, seeded
from cases.registry import case

CHANNELS = 5
LAYERS: Any = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def _sizes(ranks: int) -> list[int]:
    """Of the ranks' batches: no two alike."""
    return [3 + 2 * rank for rank in range(ranks)]


def _inputs(step: int, tail: tuple[int, ...], dtype: torch.dtype, sizes: list[int]) -> list[torch.Tensor]:
    """Everybody's batches; far from zero, and of another spread on each rank."""
    return [
        (batch(rank, step, size, CHANNELS, *tail, dtype=torch.float64) * (1 + rank) + 3).to(dtype)
        for rank, size in enumerate(sizes)
    ]


def _close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float, floor: float = 1e-8) -> None:
    """Each element where a double says it; of other types to the size of the largest, as sums round to that."""
    is_double = expected.dtype == torch.float64
    size = float(expected.abs().max()) if not is_double and expected.numel() > 0 else 0.0
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=max(floor, tolerance * size))


def _sum_over_ranks(tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    total = tensor.detach().clone()
    bagua.allreduce_inplace(total, comm=group.get_global_communicator() if group is not None else None)
    return total


def _check_training(
    plain: Any, tail: tuple[int, ...], tolerance: float = 1e-6, sizes: list[int] | None = None, group: Any = None
) -> None:
    """Outputs, gradients and statistics of some steps, and an evaluation after them."""
    members = group.ranks if group is not None else list(range(bagua.get_world_size()))
    sizes = _sizes(len(members)) if sizes is None else sizes
    own = members.index(bagua.get_rank())
    ours = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain), group)
    dtype = plain.running_mean.dtype
    for step in range(3):
        inputs = _inputs(step, tail, dtype, sizes)
        joined, mine = torch.cat(inputs).requires_grad_(), inputs[own].clone().requires_grad_()
        expected, actual = plain(joined), ours(mine)
        factors = torch.cat(_inputs(step + 100, tail, dtype, sizes))
        (expected * factors).sum().backward()
        (actual * factors.split(sizes)[own]).sum().backward()
        _close(actual, expected.split(sizes)[own], tolerance)
        assert mine.grad is not None and joined.grad is not None
        _close(mine.grad, joined.grad.split(sizes)[own], tolerance)
    for mine_too, theirs in zip(ours.parameters(), plain.parameters()):
        _close(_sum_over_ranks(mine_too.grad, group), theirs.grad, tolerance)
    for statistic, wanted in zip(ours.buffers(), plain.buffers()):
        _close(statistic, wanted, tolerance)
    _close(ours.eval()(mine), plain.eval()(joined).split(sizes)[own], tolerance)


def _layer(tail: tuple[int, ...], dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    layer = seeded(0, lambda: LAYERS[2 + len(tail)](CHANNELS, dtype=dtype, **options))
    if layer.affine:
        with torch.no_grad():
            layer.weight.uniform_(0.5, 2.0)
            layer.bias.normal_()
    return layer


@case(1, 2, 3, 4)
def inputs_of_every_number_of_dimensions() -> None:
    for tail in ((), (4,), (3, 2), (2, 3, 2)):
        _check_training(_layer(tail), tail)


@case(1, 2, 3, 4)
def every_option() -> None:
    for options in ({"momentum": None}, {"momentum": 0.9, "eps": 1e-2}, {"affine": False}):
        _check_training(_layer((3,), **options), (3,))


@case(2, 3)
def single_precision() -> None:
    _check_training(_layer((3, 3), torch.float32), (3, 3))


@case(1, 2, 3, 4)
def half_types_are_summed_in_single_precision() -> None:
    """Beyond what the results are rounded to, nothing is lost: statistics of many values, far from zero."""
    for dtype, rounding in ((torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
        _check_training(_layer((2, 2), dtype), (2, 2), rounding)
        _check_mixed(dtype)


def _check_mixed(dtype: torch.dtype) -> None:
    """Parameters and statistics in single precision, as under autocast, against a layer in double precision.

    Output and the input's gradient are rounded to the half type, once: to half the distance of two neighbours. What has
    the type of the parameters is held to 1e-6. Factors that are far from zero beside their spread would ask for more
    than single precision has: in the sum of their products with the centred inputs, whose own sum is 0, nearly all
    would cancel out, and BatchNorm in single precision would miss 1e-6, too.
    """
    rank, size = rank_and_size()
    layer = _layer((40, 40), torch.float32)
    exact = copy.deepcopy(layer).double()
    ours = SyncBatchNorm.convert_sync_batchnorm(layer)
    inputs, others = (_inputs(step, (40, 40), dtype, _sizes(size)) for step in (0, 1))
    factors = [one + other - 5 for one, other in zip(inputs, others)]  # with a part along the inputs; their mean is 1
    mine, joined = inputs[rank].clone().requires_grad_(), torch.cat(inputs).double().requires_grad_()
    output, wanted = ours(mine), exact(joined)
    output.backward(factors[rank])
    wanted.backward(torch.cat(factors).double())
    assert mine.grad is not None and joined.grad is not None
    for rounded, whole in ((output, wanted), (mine.grad, joined.grad)):
        assert rounded.dtype == dtype
        part = whole.split(_sizes(size))[rank]
        lost = 1e-6 * float(part.abs().max())
        torch.testing.assert_close(rounded.double(), part, rtol=1.001 * torch.finfo(dtype).eps / 2, atol=lost)
    for parameter, reference in zip(ours.parameters(), exact.parameters()):
        assert parameter.grad.dtype == torch.float32
        _close(_sum_over_ranks(parameter.grad), reference.grad.float(), 1e-6)
    for statistic, reference in zip(ours.buffers(), exact.buffers()):
        _close(statistic, reference.to(statistic.dtype), 1e-6)


@case(2, 3)
def a_rank_with_an_empty_batch() -> None:
    _, size = rank_and_size()
    _check_training(_layer((3,)), (3,), sizes=[0, *range(2, 1 + size)])
    _check_training(_layer((3,), torch.float32), (3,), sizes=[*range(2, 1 + size), 0])


@case(2)
def one_value_on_each_rank() -> None:
    _check_training(_layer(()), (), sizes=[1, 1])


@case(2, 3)
def too_few_values_are_an_error_on_all_ranks() -> None:
    rank, _ = rank_and_size()
    layer = SyncBatchNorm(CHANNELS)
    with raises(InvalidArgument, "together have 1 values a channel"):
        layer(torch.zeros(int(rank == 0), CHANNELS))


@case(3)
def a_group_of_some_ranks() -> None:
    group = bagua.new_group([0, 2])
    if bagua.get_rank() != 1:
        _check_training(_layer((3,)), (3,), group=group)
    else:
        with raises(InvalidArgument, "process_group"):
            SyncBatchNorm(CHANNELS, process_group=group)(torch.zeros(2, CHANNELS))


@case(2)
def channels_last() -> None:
    rank, size = rank_and_size()
    plain = _layer((3, 3))
    ours = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    inputs = _inputs(0, (3, 3), torch.float64, _sizes(size))
    expected = plain(torch.cat(inputs)).split(_sizes(size))[rank]
    _close(ours(inputs[rank].to(memory_format=torch.channels_last)), expected, 1e-6)


@case(2)
def evaluation_waits_for_nobody() -> None:
    rank, _ = rank_and_size()
    for tracks in (True, False):
        layer = SyncBatchNorm(CHANNELS, track_running_stats=tracks).eval()
        if rank == 0:
            layer(batch(0, 0, 4, CHANNELS))


@case(2)
def one_exchange_forward_and_one_backward() -> None:
    rank, size = rank_and_size()
    found: list[str] = []

    def told(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def call(*values: Any, **named: Any) -> None:
            found.append(name)
            function(*values, **named)

        return call

    own = {name: getattr(communication, name) for name in ("allgather", "allreduce_inplace")}
    for name, function in own.items():
        setattr(communication, name, told(name, function))
    try:
        inputs = _inputs(0, (3,), torch.float64, _sizes(size))[rank].requires_grad_()
        output = SyncBatchNorm(CHANNELS, dtype=torch.float64)(inputs)
        assert found == ["allgather"]
        output.sum().backward()
        assert found == ["allgather", "allreduce_inplace"]
    finally:
        for name, function in own.items():
            setattr(communication, name, function)


def _net() -> Any:
    return nn.Sequential(
        nn.Conv2d(2, CHANNELS, 3), nn.BatchNorm2d(CHANNELS), nn.ReLU(), nn.Flatten(), nn.Linear(CHANNELS * 4, 3)
    ).double()


@case(2, 3)
def training_a_wrapped_net_is_training_on_the_joined_batch() -> None:
    """The bias before the normalisation has the gradient 0 in theory."""
    rank, size = rank_and_size()
    plain = seeded(0, _net)
    model = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (plain, model)]
    model = model.with_bagua([optimizers[1]], "gradient_allreduce")
    for step in range(5):
        inputs = [batch(r, step, 4, 2, 4, 4, dtype=torch.float64) for r in range(size)]
        for net, optimizer, given in zip((plain, model), optimizers, (torch.cat(inputs), inputs[rank])):
            optimizer.zero_grad()
            net(given).square().mean().backward()
            optimizer.step()
        for (name, mine), theirs in zip(model.named_parameters(), plain.parameters()):
            assert mine.grad is not None and theirs.grad is not None, name
            _close(mine.grad, theirs.grad, 1e-6)
            _close(mine, theirs, 1e-6)
    for mine_too, theirs in zip(model.buffers(), plain.buffers()):
        _close(mine_too, theirs, 1e-6)
    assert_same_on_all_ranks([*model.buffers()])
    assert isinstance(copy.deepcopy(model)[1], SyncBatchNorm)


@case(3)
def a_copy_has_the_group_and_a_pickle_none() -> None:
    """What was pickled must be told its group again, instead of waiting for ranks that know nothing of it."""
    rank = bagua.get_rank()
    group = bagua.new_group([0, 2])
    model = nn.Sequential(SyncBatchNorm(CHANNELS, process_group=group))
    copied: Any = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: Any = torch.load(file, weights_only=False)
    if rank == 1:
        return
    inputs = batch(rank, 0, 4, CHANNELS)
    wanted = model(inputs)
    assert copied[0].process_group is group
    assert torch.equal(copied(inputs), wanted)
    with raises(FailedPrecondition, "process_group"):
        copy.deepcopy(loaded)(inputs)
    assert loaded.eval()(inputs).shape == inputs.shape
    loaded.train()[0].process_group = group
    assert torch.equal(loaded(inputs), wanted)


class _Block(nn.Module):
    """Without a loop over its layers, of which torch.compile makes nothing. Threads: the test's. Owns: its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(CHANNELS, CHANNELS), SyncBatchNorm(CHANNELS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.linear(inputs)))


@case(2)
def layers_are_compiled() -> None:
    """What is before a layer is one graph, and what is after it another one; nothing of it is tried."""
    rank, size = rank_and_size()
    graphs: list[Any] = []

    def backend(graph: Any, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    given = _inputs(0, (), torch.float32, _sizes(size))[rank]
    found = []
    for compile_it in (False, True):
        net: Any = seeded(0, _Block)
        called = torch.compile(net, backend=backend) if compile_it else net
        for _ in range(2):
            called(given).square().sum().backward()
        found.append([*(p.grad for p in net.parameters()), *net.buffers()])
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(plain, compiled)
    assert len(graphs) == 2, [graph.code for graph in graphs]
