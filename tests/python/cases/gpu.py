"""Training and collectives on a GPU equal those on the CPU. Where there is no GPU, a device of PyTorch that stands in
for one (accelerator.py) has the same streams and memory, and NCCL's stand-in between the ranks."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import accelerator
import pelton.torch_api as bagua
import torch
from pelton.errors import Unsupported
from pelton.torch_api import communication
from pelton.torch_api.algorithms.async_model_average import AsyncModelAverageAlgorithm
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.algorithms.bytegrad import ByteGradAlgorithm
from pelton.torch_api.algorithms.decentralized import LowPrecisionDecentralizedAlgorithm
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from pelton.torch_api.algorithms.q_adam import QAdamAlgorithm, QAdamOptimizer
from pelton.torch_api.contrib import SyncBatchNorm, fuse_optimizer
from pelton.torch_api.model_parallel.moe import MoE
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cases.checks import SHAPE, assert_same, batch, gradients, make_mlp, mean, raises, rank_and_size, seeded
from cases.registry import case
from cases.user_algorithms import Centralized, Written

STEPS = 5
KIND = accelerator.gpus_kind()
Wrap = Callable[[Any], tuple[Any, torch.optim.Optimizer]]


def _device() -> torch.device:
    """The ranks of one machine with one GPU share it (NCCL 2.30 and later)."""
    count = torch.accelerator.device_count()
    torch.accelerator.set_device_index(bagua.get_rank() % count)
    return torch.device(KIND, bagua.get_rank() % count)


def _loss(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    device = next(model.parameters()).device
    return model(inputs.to(device)).square().mean()


def _train(model: Any, wrap: Wrap, steps: int = STEPS) -> Any:
    """The model's parameters and gradients after each step, on the CPU."""
    rank, _ = rank_and_size()
    model, optimizer = wrap(model)
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        _loss(model, batch(rank, step, *SHAPE)).backward()
        seen.append({name: None if grad is None else grad.cpu() for name, grad in gradients(model).items()})
        optimizer.step()
        seen.append({name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()})
    return seen


def _check_as_on_the_cpu(wrap: Wrap, tolerance: float = 0.0, make: Callable[[], Any] = make_mlp) -> None:
    """Ranks begin with different values on purpose: rank 0's are what counts."""
    rank, _ = rank_and_size()
    on_cpu = _train(seeded(rank, make), wrap)
    on_gpu = _train(seeded(rank, make).to(_device()), wrap)
    for expected, actual in zip(on_cpu, on_gpu):
        if KIND == accelerator.NAME and tolerance == 0:
            assert_same(actual, expected)
            continue
        for name, value in expected.items():  # a GPU rounds in another order
            torch.testing.assert_close(actual[name], value, rtol=max(tolerance, 1e-4), atol=max(tolerance, 1e-5))


def _sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _with(algorithm: Callable[[], Algorithm]) -> Wrap:
    def wrap(model: Any) -> tuple[Any, torch.optim.Optimizer]:
        optimizer = _sgd(model)
        return model.with_bagua([optimizer], algorithm()), optimizer

    return wrap


@case(1, 2)
def gradients_are_averaged_in_buckets_on_the_gpu() -> None:
    _check_as_on_the_cpu(_with(GradientAllReduceAlgorithm))


@case(2)
def gradients_lie_in_the_gpus_buckets() -> None:
    """No copy: after the first steps only what autograd makes anew is copied in, nothing goes by the host."""
    for algorithm in (GradientAllReduceAlgorithm(), ByteGradAlgorithm(hierarchical=False)):
        model = seeded(0, make_mlp).to(_device())
        optimizer = _sgd(model)
        model = model.with_bagua([optimizer], algorithm)
        places = []
        for step in range(4):
            optimizer.zero_grad(set_to_none=False)
            _loss(model, batch(0, step, *SHAPE)).backward()
            places.append([parameter.grad.data_ptr() for parameter in model.parameters()])
            assert all(parameter.grad.device == parameter.device for parameter in model.parameters())
        assert places[1] == places[2] == places[3]


class _Branches(nn.Module):
    """Rank r uses branch r; nobody uses the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 3) for _ in range(bagua.get_world_size() + 1))
        self.all = nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.all(self.branches[bagua.get_rank()](inputs))


@case(2)
def unused_parameters_are_found() -> None:
    _check_unused(GradientAllReduceAlgorithm)
    _check_unused(lambda: ByteGradAlgorithm(hierarchical=False))


def _check_unused(algorithm: Callable[[], Algorithm]) -> None:
    def train(device: torch.device) -> Any:
        model = seeded(0, _Branches).to(device)
        optimizer = _sgd(model)
        model = model.with_bagua([optimizer], algorithm())
        seen = []
        for step in range(3):
            optimizer.zero_grad()
            _loss(model, batch(bagua.get_rank(), step, *SHAPE)).backward()
            seen.append({name: None if grad is None else grad.cpu() for name, grad in gradients(model).items()})
            optimizer.step()
        return seen

    for expected, actual in zip(train(torch.device("cpu")), train(_device())):
        assert {name for name, grad in actual.items() if grad is None} == {"branches.2.weight", "branches.2.bias"}
        for name, grad in expected.items():
            assert grad is None or torch.allclose(actual[name], grad, atol=1e-5), name


@case(2)
def local_steps_accumulate() -> None:
    rank, size = rank_and_size()
    model = seeded(0, make_mlp).to(_device())
    reference = seeded(0, make_mlp)
    model = model.with_bagua([_sgd(model)], GradientAllReduceAlgorithm())
    with model.bagua_ddp.no_sync():
        _loss(model, batch(rank, 0, *SHAPE)).backward()
    _loss(model, batch(rank, 1, *SHAPE)).backward()
    sums = []
    for r in range(size):
        reference.zero_grad()
        for step in range(2):
            _loss(reference, batch(r, step, *SHAPE)).backward()
        sums.append(gradients(reference))
    for name, parameter in model.named_parameters():
        expected = mean([found[name] for found in sums])
        assert expected is not None and torch.allclose(parameter.grad.cpu(), expected, atol=1e-5), name


@case(2)
def an_optimizers_state_follows_rank_0s() -> None:
    rank, _ = rank_and_size()
    model = seeded(rank, make_mlp).to(_device())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if rank == 0:
        _loss(model, batch(0, 0, *SHAPE)).backward()
        optimizer.step()
    model.with_bagua([optimizer], GradientAllReduceAlgorithm())
    own = [optimizer.state[parameter]["exp_avg"] for parameter in model.parameters()]
    assert all(moment.device == _device() for moment in own)
    for moment in own:
        everyones = torch.zeros(2, moment.numel(), device=moment.device)
        bagua.allgather(moment.reshape(-1), everyones)
        assert torch.equal(everyones[0].cpu(), everyones[1].cpu()) and bool(moment.cpu().any())


@case(1, 2)
def bytegrad_runs_in_buckets_on_the_gpu() -> None:
    _check_as_on_the_cpu(_with(lambda: ByteGradAlgorithm(hierarchical=False)))
    _check_as_on_the_cpu(_with(lambda: ByteGradAlgorithm(hierarchical=True)))


@case(2)
def bytegrad_with_other_codecs_goes_by_the_hosts_memory() -> None:
    _check_as_on_the_cpu(_with(lambda: ByteGradAlgorithm(hierarchical=False, codec="one_bit")))


@case(1, 2)
def qadams_moments_are_averaged_in_buckets_on_the_gpu() -> None:
    def wrap(model: Any) -> tuple[Any, torch.optim.Optimizer]:
        optimizer = QAdamOptimizer(model.parameters(), lr=0.05, warmup_steps=2)
        return model.with_bagua([optimizer], QAdamAlgorithm(optimizer, hierarchical=False)), optimizer

    _check_as_on_the_cpu(wrap)


# Those whose weights lie in buckets on the GPU.
_AVERAGES: list[tuple[str, dict[str, Any]]] = [
    ("local_sgd", {"interval": 2}),
    ("decentralized", {}),
    ("decentralized", {"peer_selection_mode": "shift_one", "hierarchical": False}),
    ("decentralized", {"peer_selection_mode": "shift_one", "hierarchical": True}),
    ("decentralized", {"peer_selection_mode": "shift_one", "hierarchical": False, "global_interval": 2}),
]


@case(1, 2)
def weights_are_averaged_in_buckets_on_the_gpu() -> None:
    for name, options in _AVERAGES:
        _check_as_on_the_cpu(_with(functools.partial(Algorithm.init, name, **options)))


class _Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SHAPE[1], 3, dtype=torch.cfloat))
        self.wide = nn.Parameter(torch.randn(3, dtype=torch.cdouble))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight.abs() * self.wide.abs().float()  # the device that stands in has no other products


@case(2)
def complex_weights_are_averaged_on_the_gpu() -> None:
    averages: list[tuple[str, dict[str, Any]]] = [("gradient_allreduce", {}), *_AVERAGES]
    for name, options in averages:
        _check_as_on_the_cpu(_with(functools.partial(Algorithm.init, name, **options)), make=_Waves)


@case(2)
def some_averages_go_by_the_hosts_memory() -> None:
    _check_as_on_the_cpu(_with(lambda: LowPrecisionDecentralizedAlgorithm(hierarchical=False)))
    _check_as_on_the_cpu(_with(lambda: Algorithm.init("local_sgd", interval=2, codec="min_max_uint8")))
    _check_as_on_the_cpu(_with(lambda: Algorithm.init("diloco", interval=4, fragments=2, delay=1)))


@case(2)
def averaging_beside_training_brings_ranks_together() -> None:
    rank, _ = rank_and_size()
    model = seeded(rank, make_mlp).to(_device())
    optimizer = _sgd(model)
    model = model.with_bagua([optimizer], AsyncModelAverageAlgorithm(sync_interval_ms=0))
    for step in range(5):
        optimizer.zero_grad()
        _loss(model, batch(rank, step, *SHAPE)).backward()
        optimizer.step()
    model.bagua_algorithm.abort(model)
    for parameter in model.parameters():
        everyones = torch.zeros(2, parameter.numel(), device=parameter.device)
        bagua.allgather(parameter.detach().reshape(-1), everyones)
        torch.testing.assert_close(everyones[0].cpu(), everyones[1].cpu())


@case(1, 2)
def collectives_equal_those_of_the_cpu() -> None:
    rank, size = rank_and_size()
    device = _device()
    mine = torch.arange(12.0).reshape(3, 4) + 100 * rank
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "allreduce": lambda t: _filled(t, lambda out: bagua.allreduce(t, out, bagua.ReduceOp.SUM)),
        "average": lambda t: _filled(t, lambda out: bagua.allreduce(t, out, bagua.ReduceOp.AVG)),
        "broadcast": lambda t: _in_place(t, lambda out: bagua.broadcast(out, size - 1)),
        "allgather": lambda t: _filled(t.expand(size, 3, 4), lambda out: bagua.allgather(t, out)),
        "reduce_inplace": lambda t: _in_place(t, lambda out: bagua.allreduce_inplace(out)),
        "alltoall": lambda t: _filled(t[:size], lambda out: bagua.alltoall(t[:size].contiguous(), out)),
        "strided": lambda t: _in_place(t.t(), lambda out: bagua.allreduce_inplace(out)),
        "coalesced": lambda t: _in_place(t, lambda out: communication.allreduce_coalesced_inplace([out[0], out[1]])),
    }
    for name, call in calls.items():
        expected = call(mine.clone())
        actual = call(mine.clone().to(device))
        assert actual.device == device, name
        assert torch.equal(actual.cpu(), expected), name


@case(2, 3)
def every_collective_takes_strided_targets() -> None:
    """Strided on rank 0 only: a call that goes another way there leaves the others waiting."""
    rank, size = rank_and_size()
    device = _device()
    calls = _collectives(rank, size)
    on_cpu = [call(torch.device("cpu"), strided) for strided in (False, rank == 0) for call in calls]
    on_gpu = [call(device, strided) for strided in (False, rank == 0) for call in calls]
    for i, (expected, actual) in enumerate(zip(on_cpu, on_gpu)):
        assert actual.device == device, i
        assert torch.equal(actual.cpu(), expected), i
    for plain, strided in zip(on_cpu[: len(calls)], on_cpu[len(calls) :]):
        assert torch.equal(plain, strided)


def _collectives(rank: int, size: int) -> list[Callable[[torch.device, bool], torch.Tensor]]:
    """Each gives what its target holds afterwards; the target is transposed if `strided` says so."""
    root = size - 1

    def target(rows: int, device: torch.device, strided: bool) -> torch.Tensor:
        values = torch.arange(rows * 2.0).reshape(rows, 2) + 100 * rank
        values = values.to(device)
        return values.t().contiguous().t() if strided else values

    def apply(rows: int, call: Callable[[torch.Tensor], None]) -> Callable[[torch.device, bool], torch.Tensor]:
        def run(device: torch.device, strided: bool) -> torch.Tensor:
            tensor = target(rows, device, strided)
            call(tensor)
            return tensor

        return run

    def sent(like: torch.Tensor, rows: int) -> torch.Tensor:
        return target(rows, like.device, False) + 1

    both, rows = [2] * size, [2 * r for r in range(size)]
    calls = [
        apply(size, lambda t: bagua.allreduce(sent(t, size), t)),
        apply(size, lambda t: bagua.allreduce_inplace(t)),
        apply(size, lambda t: bagua.reduce(sent(t, size), t, 0)),
        apply(size, lambda t: bagua.reduce_inplace(t, 0)),
        apply(size, lambda t: bagua.broadcast(t, root)),
        apply(size, lambda t: bagua.allgather(sent(t, 1), t)),
        apply(size, bagua.allgather_inplace),
        apply(1, lambda t: bagua.reduce_scatter(sent(t, size), t)),
        apply(1, lambda t: bagua.scatter(sent(t, size), t, root)),
        apply(size, lambda t: bagua.gather(sent(t, 1), t, 0)),
        apply(size, lambda t: bagua.alltoall(sent(t, size), t)),
        apply(size, bagua.alltoall_inplace),
        apply(size, lambda t: bagua.alltoall_v(sent(t, size), both, rows, t, both, rows)),
        apply(size, lambda t: bagua.alltoall_v_inplace(t, both, rows)),
        apply(size if rank == root else 1, lambda t: bagua.scatter_inplace(t, 2, root)),
        apply(size if rank == 0 else 1, lambda t: bagua.gather_inplace(t, 2, 0)),
    ]
    if rank < 2:
        calls.append(apply(3, lambda t: bagua.recv(t, 1) if rank == 0 else bagua.send(t, 0)))
    return calls


def _filled(shape: torch.Tensor, call: Callable[[torch.Tensor], None]) -> torch.Tensor:
    out = torch.zeros(shape.shape, device=shape.device)
    call(out)
    return out


def _in_place(tensor: torch.Tensor, call: Callable[[torch.Tensor], None]) -> torch.Tensor:
    out = tensor.clone()
    call(out)
    return out


@case(2)
def sends_and_receives_go_between_gpus() -> None:
    rank, _ = rank_and_size()
    tensor = torch.full((5,), float(rank), device=_device())
    if rank == 0:
        bagua.send(tensor, 1)
    else:
        bagua.recv(tensor, 0)
    assert tensor.cpu().tolist() == [0.0] * 5


@case(2)
def objects_with_tensors_of_the_gpu_are_broadcast() -> None:
    rank, _ = rank_and_size()
    device = _device()
    value = {"weights": torch.ones(3, device=device), "step": 4} if rank == 0 else None
    received = bagua.broadcast_object(value, 0)
    assert received["step"] == 4 and received["weights"].device == device
    assert received["weights"].cpu().tolist() == [1.0, 1.0, 1.0]


@case(2)
def tensors_of_two_devices_are_an_error() -> None:
    with raises(ValueError, "allreduce", "cpu", KIND):
        bagua.allreduce(torch.ones(2), torch.zeros(2, device=_device()))


@case(2)
def algorithms_written_in_python_take_cpu_tensors() -> None:
    model = seeded(0, make_mlp).to(_device())
    with raises(Unsupported, "2.bias", str(_device()), "CPU"):
        model.with_bagua([_sgd(model)], Written(Centralized))


@case(1, 2)
def batch_normalisation_over_all_ranks() -> None:
    """Inputs, statistics and parameters of a GPU, and the sums between the ranks too."""
    rank, _ = rank_and_size()
    found = []
    for device in (torch.device("cpu"), _device()):
        layer = SyncBatchNorm(6, momentum=None).to(device)
        inputs = batch(rank, 0, 3 + rank, 6, 5).to(device).requires_grad_()
        outputs = layer(inputs)
        (outputs * batch(rank, 1, 3 + rank, 6, 5).to(device)).sum().backward()
        tensors = [outputs, inputs.grad, *(parameter.grad for parameter in layer.parameters()), *layer.buffers()]
        assert all(tensor.device == device for tensor in tensors)
        found.append([tensor.detach().cpu() for tensor in tensors])
    for expected, actual in zip(*found):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@case(1, 2)
def fused_optimizers_step_alike() -> None:
    """Gradients are communicated one by one, and the optimizer lays them out."""
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        seen = []
        for fuses in (False, True):
            model = seeded(0, make_mlp).to(_device())
            optimizer: Any = kind(model.parameters(), lr=0.1, weight_decay=0.1)
            if fuses:
                optimizer = fuse_optimizer(optimizer)
            model = model.with_bagua([optimizer], GradientAllReduceAlgorithm(), do_flatten=False)
            for step in range(STEPS):
                optimizer.zero_grad()
                _loss(model, batch(bagua.get_rank(), step, *SHAPE)).backward()
                (optimizer.fuse_step if fuses else optimizer.step)()
            seen.append([parameter.detach().cpu() for parameter in model.parameters()])
        assert optimizer._bagua_fused_count == STEPS
        assert all(torch.equal(actual, expected) for expected, actual in zip(*seen))


def _experts(device: torch.device, k: int, policy: str | None) -> list[torch.Tensor | None]:
    """What a layer of experts makes of this rank's tokens, and every gradient, on the CPU."""
    rank, _ = rank_and_size()
    layer: Any = seeded(7 + rank, lambda: MoE(6, nn.Linear(6, 6), 2, k=k, min_capacity=2, noisy_gate_policy=policy))
    with torch.no_grad():
        layer.bagua_moe.gate.wg.weight.copy_(batch(0, 0, *layer.bagua_moe.gate.wg.weight.shape))  # alike on all ranks
    layer.to(device)
    inputs = batch(rank, 1, 3, 4, 6).to(device).requires_grad_()
    torch.manual_seed(100 + rank)
    output, l_aux, counts = layer(inputs)
    ((output * batch(rank, 2, 3, 4, 6).to(device)).sum() + l_aux).backward()
    tensors = [output, l_aux, counts, inputs.grad, *(parameter.grad for parameter in layer.parameters())]
    assert all(tensor is None or tensor.device == device for tensor in tensors)
    return [None if tensor is None else tensor.detach().cpu() for tensor in tensors]


class _NumbersOfTheCpu(TorchDispatchMode):
    """Draws torch.rand's numbers on the CPU, whatever the device: a GPU's generator gives others for the same seed.
    Threads: those that call operators. Owns: nothing.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.ops.aten.rand.default:
            return function(*args, **(kwargs or {}))
        return torch.rand(*args, dtype=kwargs.get("dtype")).to(kwargs.get("device"))


@case(1, 2)
def experts_answer_and_learn_as_on_the_cpu() -> None:
    """Outputs, the balance loss, the counts and all gradients."""
    for k in (1, 2):
        for policy in (None, "Jitter", "RSample"):
            with _NumbersOfTheCpu():
                expected, actual = (_experts(device, k, policy) for device in (torch.device("cpu"), _device()))
            for i, (one, other) in enumerate(zip(expected, actual, strict=True)):
                assert (one is None) == (other is None), i
                if one is not None:
                    torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


class _LooksAtValues(TorchDispatchMode):
    """Notes the operators that let the host wait for a device's stream: copies to the CPU, and what gives a number, or
    a tensor of a size that depends on values. Threads: those that call operators, one at a time. Owns: its notes.
    """

    _TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.found: list[str] = []
        self.called: set[str] = set()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.called.add(func.overloadpacket.__name__)
        if any(map(self._is_here, tree_leaves((args, kwargs)))):
            leaves = any(isinstance(made, torch.Tensor) and not self._is_here(made) for made in tree_leaves(result))
            if leaves or not self._TAGS.isdisjoint(func.tags):
                self.found.append(str(func))
        return result

    def _is_here(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device == self._device


@case(1, 2)
def no_value_of_experts_comes_to_the_host() -> None:
    """On the way forward and back nothing waits for the stream but the exchanges, which return when they are done."""
    rank, _ = rank_and_size()
    device = _device()
    for k, policy in ((1, None), (1, "Jitter"), (1, "RSample"), (2, None)):
        options: Any = {"min_capacity": 2, "noisy_gate_policy": policy, "average_expert_gradients": True}
        layer = MoE(6, nn.Linear(6, 6), 2, k=k, **options).to(device)
        inputs = batch(rank, 1, 3, 4, 6).to(device).requires_grad_()
        used = torch.ones(12, device=device)
        with _LooksAtValues(device) as looks:
            output, l_aux, counts = layer(inputs, used)
            (output.sum() + l_aux).backward()
        assert counts.device == device
        assert {"scatter_", "_softmax_backward_data"} <= looks.called, "of both ways"
        assert not looks.found, (k, policy, looks.found)
        with looks:
            counts.sum().item()
            counts.cpu()
            counts.nonzero()
        assert len(looks.found) == 3, looks.found


@case(1, 2)
def no_weight_that_is_averaged_on_the_gpu_comes_to_the_host() -> None:
    rank, _ = rank_and_size()
    device = _device()
    for name, options in _AVERAGES:
        model = seeded(rank, make_mlp).to(device)
        optimizer = _sgd(model)
        model = model.with_bagua([optimizer], Algorithm.init(name, **options))
        inputs = batch(rank, 1, *SHAPE).to(device)
        with _LooksAtValues(device) as looks:
            for _ in range(3):
                optimizer.zero_grad()
                _loss(model, inputs).backward()
                optimizer.step()
        assert "copy_" in looks.called, "of the weights, into their buckets and back"
        assert not looks.found, (name, options, looks.found)


@case(2)
def models_are_dropped_by_one_rank_after_the_other() -> None:
    """NCCL ends a communicator where the peers end theirs, which is when their garbage is collected."""
    rank, _ = rank_and_size()

    def made() -> Any:
        model = seeded(rank, make_mlp).to(_device())
        optimizer = _sgd(model)
        model = model.with_bagua([optimizer], GradientAllReduceAlgorithm())
        _loss(model, batch(rank, 0, *SHAPE)).backward()
        optimizer.step()
        return model

    models = [made(), made()]
    for number in (rank, 1 - rank):
        models[number] = None
        gc.collect()
        bagua.barrier()
