"""Layers of experts on several ranks against the same experts in one process, and beside every algorithm."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from moe_reference import Routes, layer, top1, top2
from pelton._training.algorithms import _defaults
from pelton.torch_api.algorithms import GlobalAlgorithmRegistry
from pelton.torch_api.model_parallel.moe import MoE, is_moe_param
from torch import nn
from torch.utils.checkpoint import checkpoint

from cases.checks import assert_same_on_all_ranks, batch, raises, rank_and_size, seeded
from cases.programs import ALGORITHMS, Kind, Under
from cases.registry import case
from cases.torch_world import beside_gloo

HIDDEN = 6
LOCAL = 2  # experts on a rank
TOKENS = (3, 4)


class Net(nn.Module):
    """Dense layers around experts. Threads: the test's. Owns: its layers."""

    def __init__(self, local: int = LOCAL, **options: Any) -> None:
        super().__init__()
        expert = nn.Sequential(nn.Linear(HIDDEN, 5), nn.Tanh(), nn.Linear(5, HIDDEN))
        self.inward, self.outward = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 3)
        self.moe: Any = MoE(HIDDEN, expert, local, min_capacity=2, **options)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, l_aux, _ = self.moe(self.inward(inputs).tanh())
        return self.outward(hidden), l_aux


def _loss(found: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return found[0].square().mean() + 0.1 * found[1]


def _net(rank: int, **options: Any) -> Net:
    """Rank 0's dense layers; experts of the rank's own, and each one's."""
    net: Net = seeded(0, lambda: Net(**options))
    torch.manual_seed(50 + rank)
    with torch.no_grad():
        for parameter in net.moe.bagua_moe.experts.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return net


def _inputs(rank: int) -> torch.Tensor:
    return batch(rank, 0, *TOKENS, HIDDEN).requires_grad_()


def _routes(net: Net, tokens: torch.Tensor, rank: int, k: int, policy: str | None) -> Routes:
    torch.manual_seed(900 + rank)
    if policy == "Jitter":
        tokens = tokens * torch.distributions.Uniform(torch.tensor(0.99), torch.tensor(1.01)).rsample(tokens.shape)
    logits = tokens @ net.moe.bagua_moe.gate.wg.weight.T
    return top1(logits, 1.0, 2, None, policy) if k == 1 else top2(logits, 1.0, None)


def _in_one_process(k: int, policy: str | None, average: bool) -> tuple[list[torch.Tensor], list[Any], list[Any]]:
    """By rank: the outputs, the gradients of its inputs, and all gradients by name."""
    _, size = rank_and_size()
    nets = [_net(rank, k=k, noisy_gate_policy=policy) for rank in range(size)]
    inputs = [_inputs(rank) for rank in range(size)]
    dense = nets[0]  # the same numbers on all
    tokens = [dense.inward(rows).tanh().reshape(-1, HIDDEN) for rows in inputs]
    routes = [_routes(dense, mine, rank, k, policy) for rank, mine in enumerate(tokens)]
    experts = [expert for net in nets for expert in net.moe.bagua_moe.experts.bagua_experts]
    hidden = layer(tokens, routes, experts)
    outputs = [dense.outward(rows.reshape(*TOKENS, HIDDEN)) for rows in hidden]
    sum(_loss((output, way.l_aux)) for output, way in zip(outputs, routes)).backward()  # type: ignore[union-attr]
    gradients = []
    for net in nets:
        rows = {name: p.grad for name, p in net.named_parameters() if is_moe_param(p)}
        found = {name: torch.zeros_like(net.get_parameter(name)) if g is None else g for name, g in rows.items()}
        found = {name: gradient / size if average else gradient for name, gradient in found.items()}
        means = {n: p.grad for n, p in dense.named_parameters() if not is_moe_param(p)}
        found.update({name: gradient / size for name, gradient in means.items() if gradient is not None})
        gradients.append(found)
    return [output.detach() for output in outputs], [rows.grad for rows in inputs], gradients


def _check_as_one_process(k: int, policy: str | None, average: bool) -> None:
    rank, _ = rank_and_size()
    wanted = _in_one_process(k, policy, average)
    net = _net(rank, k=k, noisy_gate_policy=policy, average_expert_gradients=average)
    model: Any = net.with_bagua([], "gradient_allreduce")  # type: ignore[operator]
    inputs = _inputs(rank)
    torch.manual_seed(900 + rank)
    output, l_aux = model(inputs)
    _loss((output, l_aux)).backward()
    _assert_close("output", output.detach(), wanted[0][rank])
    _assert_close("inputs", inputs.grad, wanted[1][rank])
    for name, parameter in net.named_parameters():
        _assert_close(name, parameter.grad, wanted[2][rank][name])


def _assert_close(name: str, found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6, msg=lambda text: f"{name}: {text}")


@case(1, 2, 3, 4)
def layers_equal_one_process() -> None:
    """Outputs and every gradient, of one and two choices, with each kind of noise."""
    for k in (1, 2):
        for policy in (None, "Jitter", "RSample"):
            _check_as_one_process(k, policy, average=False)


@case(2, 3)
def experts_gradients_can_be_means() -> None:
    for k in (1, 2):
        _check_as_one_process(k, None, average=True)


_KINDS = {**ALGORITHMS, "power_sgd": Kind("power_sgd", {"min_compression": 1, "rank": 1}), "async": Kind("async", {})}


def _under(name: str) -> Under:
    return Under(_KINDS.get(name, Kind(name, {})))


def _train(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    rank, _ = rank_and_size()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        torch.manual_seed(31 * step + rank)
        loss = _loss(model(batch(rank, step % 2, *TOKENS, HIDDEN)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@case(2)
@mock.patch.object(_defaults, "are_baguas", False)  # importing `bagua`, as other cases do, has QAdam's be less careful
def every_algorithm_trains_beside_experts() -> None:
    """The dense part as ever; experts stay each rank's own, in no bucket, and learn."""
    rank, _ = rank_and_size()
    for name in GlobalAlgorithmRegistry.available_algorithms():
        world = _under(name)
        net = _net(rank)
        optimizer = world.optimizer(net.parameters())
        model = world.wrap(net, [optimizer])
        experts = {n: p.detach().clone() for n, p in net.named_parameters() if is_moe_param(p)}
        in_buckets = {tensor for bucket in model.bagua_buckets for tensor in bucket.tensor_names}
        assert in_buckets == {n for n, _ in net.named_parameters()} - set(experts), (name, in_buckets)
        losses = _train(model, optimizer, 12)
        assert min(losses[-2:]) < losses[0], (name, losses)
        model.bagua_ddp.consolidate()
        assert_same_on_all_ranks([p for p in net.parameters() if not is_moe_param(p)])
        for parameter_name, before in experts.items():
            after = net.get_parameter(parameter_name).detach()
            assert after.isfinite().all(), (name, parameter_name)
            everyones = torch.zeros(2, after.numel())
            bagua.allgather(after.reshape(-1), everyones)
            assert not torch.equal(everyones[0], everyones[1]), (name, parameter_name)
            if parameter_name.endswith("bias"):
                assert not torch.equal(before, after), (name, parameter_name)
        model.bagua_ddp.detach()


@case(2)
def experts_step_by_their_own_gradients() -> None:
    """Under each algorithm with an optimizer of torch's: what SGD makes of each step's gradient on this rank."""
    rank, _ = rank_and_size()
    for name, kind in _KINDS.items():
        if kind.optimizer is not None or name == "async":
            continue
        net = _net(rank)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        model = _under(name).wrap(net, [optimizer])
        for step in range(5):
            experts = [p for p in net.parameters() if is_moe_param(p)]
            before = [p.detach().clone() for p in experts]
            _train(model, optimizer, 1)
            for old, parameter in zip(before, experts):
                if parameter.grad is not None:
                    wanted = old.add(parameter.grad, alpha=-0.05)
                    assert torch.equal(parameter.detach(), wanted), (name, step)
        model.bagua_ddp.detach()


@case(2)
def what_is_put_into_an_expert_stays_its_own() -> None:
    """Before wrapping and after it; the bias of the second one gets a rank's own gradient."""
    rank, _ = rank_and_size()
    net = _net(rank)
    first, second = net.moe.bagua_moe.experts.bagua_experts
    nn.utils.parametrizations.weight_norm(first[0])
    before = [p.detach().clone() for p in first.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    model: Any = net.with_bagua([optimizer], "gradient_allreduce")  # type: ignore[operator]
    for old, parameter in zip(before, first.parameters(), strict=True):
        assert torch.equal(old, parameter.detach())
    second[2].bias = nn.Parameter(torch.full((HIDDEN,), 1.0 + rank))
    optimizer.add_param_group({"params": [second[2].bias]})
    _loss(model(batch(rank, 0, 24, HIDDEN))).backward()
    assert torch.equal(second[2].bias.detach(), torch.full((HIDDEN,), 1.0 + rank))
    communicated = {name for name, _ in model.bagua_ddp.bagua_build_params()}
    assert communicated == {name for name, _ in net.named_parameters() if "experts" not in name}
    everyones = torch.zeros(2, HIDDEN)
    bagua.allgather(second[2].bias.grad, everyones)
    assert not torch.equal(everyones[0], everyones[1])


@case(2)
def unequal_numbers_of_tokens_are_an_error_on_all_ranks() -> None:
    rank, _ = rank_and_size()
    net = _net(rank)
    with raises(ValueError, "alltoall", "rank"):
        net(torch.randn(6 + 4 * rank, HIDDEN))


@case(2)
def too_few_tokens_on_one_rank_are_an_error_on_all_in_the_same_pass() -> None:
    """The ranks are at the same pass afterwards."""
    rank, _ = rank_and_size()
    net = _net(rank)
    words = ("1 tokens are less than min_capacity=2",) if rank == 0 else ("alltoall", "rank")
    for training in (True, False):
        with raises(ValueError, *words):
            net.train(training).moe(torch.randn(1 if rank == 0 else 8, HIDDEN))
        net.moe(torch.randn(8, HIDDEN))
    with raises(ValueError, "less than min_capacity"):
        net.moe(torch.randn(1, HIDDEN))
    net.moe(torch.randn(8, HIDDEN))


@case(2)
def the_gate_stays_in_float32_under_autocast() -> None:
    rank, _ = rank_and_size()
    for k in (1, 2):
        net = _net(rank, k=k)
        tokens = batch(rank, 0, 40, HIDDEN)
        gate = net.moe.bagua_moe.gate
        torch.manual_seed(3)
        wanted = gate(tokens)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.manual_seed(3)
            found = gate(tokens)
            output, l_aux, _ = net.moe(tokens)
        assert all(torch.equal(mine, plain) for mine, plain in zip(found, wanted, strict=True))
        assert found[1].dtype == l_aux.dtype == torch.float32
        (output.float().square().mean() + l_aux).backward()


@contextlib.contextmanager
def _pairs() -> Iterator[Any]:
    """Groups of two of four ranks: ours, and torch's."""
    rank, _ = rank_and_size()
    ours = [bagua.new_group(pair) for pair in ([0, 1], [2, 3])][rank // 2]
    with beside_gloo():
        theirs = [dist.new_group(pair) for pair in ([0, 1], [2, 3])][rank // 2]
        yield ours, theirs


@case(4)
def a_group_shares_its_experts_alone() -> None:
    """Ranks 2 and 3 do what 0 and 1 do, with other tokens; a torch group of the same ranks is the same."""
    rank, _ = rank_and_size()
    with _pairs() as groups:
        found = []
        for group in groups:
            net = _net(rank % 2, process_group=group)
            assert net.moe.num_experts == 2 * LOCAL
            torch.manual_seed(5)
            output, _ = copy.deepcopy(net)(batch(rank % 2, 0, *TOKENS, HIDDEN))
            found.append(output.detach())
        assert torch.equal(found[0], found[1])
        everyones = torch.zeros(4, found[0].numel())
        bagua.allgather(found[0].reshape(-1), everyones)
        assert torch.equal(everyones[rank], everyones[(rank + 2) % 4])
        assert not torch.equal(everyones[0], everyones[1])


@case(4)
def experts_of_another_group_than_the_models_are_refused() -> None:
    """By name and on all ranks: of a pair where the model is everybody's, and of all where the model is a pair's."""
    rank, _ = rank_and_size()
    mine = "[0, 1]" if rank < 2 else "[2, 3]"
    with _pairs() as groups:
        for group in groups:
            net: Any = _net(rank % 2, process_group=group)
            with raises(ValueError, "'moe.bagua_moe'", f"among ranks {mine}", "ranks [0, 1, 2, 3]", "process_group"):
                net.with_bagua([], "gradient_allreduce")
            model = net.with_bagua([], "gradient_allreduce", process_group=groups[0])
            _loss(model(batch(rank, 0, *TOKENS, HIDDEN))).backward()
        of_all: Any = _net(rank)
        with raises(ValueError, "'moe.bagua_moe'", "among ranks [0, 1, 2, 3]", f"ranks {mine}"):
            of_all.with_bagua([], "gradient_allreduce", process_group=groups[0])


@case(2)
def layers_are_compiled() -> None:
    rank, _ = rank_and_size()
    found = []
    for compile_it in (False, True):
        net = _net(rank)
        model: Any = net.with_bagua([], "gradient_allreduce")  # type: ignore[operator]
        called = torch.compile(model, backend="eager") if compile_it else model
        torch.manual_seed(7)
        _loss(called(batch(rank, 0, *TOKENS, HIDDEN))).backward()
        found.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
        model.bagua_ddp.detach()
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(plain, compiled)


@case(2)
def layers_are_recomputed_in_backward() -> None:
    """Activation checkpointing makes the exchanges again, with the same random numbers."""
    rank, _ = rank_and_size()
    found = []
    for use_reentrant in (None, False, True):
        net = _net(rank, noisy_gate_policy="RSample")
        inputs = _inputs(rank)
        torch.manual_seed(7)
        if use_reentrant is None:
            output, l_aux, _ = net.moe(inputs)
        else:
            output, l_aux, _ = checkpoint(net.moe, inputs, use_reentrant=use_reentrant)
        _loss((net.outward(output), l_aux)).backward()
        found.append([inputs.grad, *(p.grad for p in net.moe.parameters())])
    for recomputed in found[1:]:
        for plain, again in zip(found[0], recomputed, strict=True):
            assert (plain is None) == (again is None)
            assert plain is None or torch.equal(plain, again)


@case(2)
def tokens_of_16_bits_travel() -> None:
    rank, _ = rank_and_size()
    net = _net(rank).to(torch.bfloat16)
    model: Any = net.with_bagua([], "gradient_allreduce")  # type: ignore[operator]
    inputs: Any = batch(rank, 0, *TOKENS, HIDDEN, dtype=torch.bfloat16).requires_grad_()
    output, l_aux = model(inputs)
    _loss((output, l_aux)).backward()
    assert (output.dtype, inputs.grad.dtype) == (torch.bfloat16, torch.bfloat16)
    assert net.moe.bagua_moe.gate.wg.weight.grad.dtype == torch.float32
    assert_same_on_all_ranks([net.moe.bagua_moe.gate.wg.weight.grad])


@case(2)
def evaluation_has_its_own_capacity() -> None:
    rank, _ = rank_and_size()
    net = _net(rank, capacity_factor=0.5, eval_capacity_factor=4.0)
    tokens = batch(rank, 0, 12, HIDDEN)
    with torch.no_grad():
        served = [int(net.train(mode).moe(tokens)[0].abs().sum(1).ne(0).sum()) for mode in (True, False)]
    assert served[0] < served[1] == 12, served
