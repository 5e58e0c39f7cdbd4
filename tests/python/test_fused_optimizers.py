"""Fused optimizers do, bit for bit, what they do plainly; no ranks needed but for cases/fused_optimizers.py."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from pelton.errors import FailedPrecondition, InvalidArgument
from pelton.torch_api.algorithms.q_adam import QAdamOptimizer
from pelton.torch_api.contrib import fuse_optimizer
from pelton.torch_api.contrib.fuse.optimizer import fuse_step, is_fused_optimizer
from spawn import case_ids, check_case
from torch import nn, optim
from torch.amp.grad_scaler import GradScaler

MODULE = "cases.fused_optimizers"
STEPS = 5
SHAPES = ((3, 2), (3,), (1, 3), (1,), (17, 5), (64,), (7, 3, 3), (400, 401), (129,))
CONFIGURATIONS: list[tuple[Any, dict[str, Any]]] = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "dampening": 0.5}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    (optim.Adam, {}),
    (optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    (optim.AdamW, {"weight_decay": 0.1}),
    (optim.AdamW, {"amsgrad": True}),
    (optim.Adamax, {"weight_decay": 0.1}),
    (optim.NAdam, {"weight_decay": 0.1}),
    (optim.RAdam, {"weight_decay": 0.1}),
    (optim.Adadelta, {"weight_decay": 0.1}),
    (optim.Adagrad, {"lr_decay": 0.1}),
    (optim.ASGD, {"weight_decay": 0.1, "t0": 2}),
    (optim.RMSprop, {}),
    (optim.RMSprop, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    (optim.Rprop, {}),
]
Make = Callable[[Any], Any]


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_fused_optimizers(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


class Twins:
    """The same parameters twice: stepped plainly, and fused."""

    def __init__(
        self, make: Make, shapes: Sequence[Any] = SHAPES, dtype: torch.dtype = torch.float32, **options: bool
    ) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.dtype = dtype
        values = [self.drawn(shape) for shape in shapes]
        self.plain, self.fused = ([nn.Parameter(value.clone()) for value in values] for _ in range(2))
        self.optimizers = [make(self.plain), fuse_optimizer(make(self.fused), **options)]

    def drawn(self, shape: Any) -> torch.Tensor:
        return torch.randn(shape, generator=self.random).to(self.dtype)

    def draw_gradients(self, used: Callable[[int], bool] = lambda _: True, keeps: bool = False) -> None:
        for i, (one, other) in enumerate(zip(self.plain, self.fused)):
            gradient = self.drawn(one.shape)
            for parameter in (one, other):
                if keeps and parameter.grad is not None:
                    parameter.grad.copy_(gradient)
                else:
                    parameter.grad = gradient.clone() if used(i) else None

    def step(self, is_fused: bool = True, keeps: bool = False) -> None:
        self.draw_gradients(keeps=keeps)
        self.optimizers[0].step()
        (self.optimizers[1].fuse_step if is_fused else self.optimizers[1].step)()

    def check(self) -> None:
        """Weights and everything that the optimizers remember."""
        for i, (one, other) in enumerate(zip(self.plain, self.fused)):
            assert torch.equal(one, other), f"parameter {i}, {list(one.shape)}"
        plain, fused = (optimizer.state_dict() for optimizer in self.optimizers)
        assert plain["param_groups"] == fused["param_groups"]
        assert plain["state"].keys() == fused["state"].keys()
        for i, states in plain["state"].items():
            assert states.keys() == fused["state"][i].keys()
            for key, value in states.items():
                _check_same(value, fused["state"][i][key], f"{key} of parameter {i}")

    @property
    def count(self) -> int:
        count: int = self.optimizers[1]._bagua_fused_count
        return count


def _check_same(one: Any, other: Any, what: str) -> None:
    assert type(one) is type(other), what
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), what
        assert torch.equal(one, other), what
    else:
        assert one == other, what


def _adam(parameters: Any) -> Any:
    return optim.Adam(parameters, amsgrad=True)


@pytest.mark.parametrize("is_foreach", [None, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "options"), CONFIGURATIONS)
def test_fused_steps_are_plain_steps(
    kind: Any, options: dict[str, Any], dtype: torch.dtype, is_foreach: bool | None
) -> None:
    twins = Twins(lambda parameters: kind(parameters, foreach=is_foreach, **options), dtype=dtype)
    for _ in range(STEPS):
        twins.step()
    twins.check()
    assert twins.count == STEPS


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad])
def test_fused_variants_are_stepped_plainly_on_a_cpu(kind: Any) -> None:
    twins = Twins(lambda parameters: kind(parameters, lr=0.1, fused=True))
    for _ in range(STEPS):
        twins.step()
    twins.check()
    assert twins.count == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_stepped_plainly_on_a_cpu(dtype: torch.dtype) -> None:
    twins = Twins(lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9), dtype=dtype)
    for _ in range(STEPS):
        twins.step()
    twins.check()
    assert twins.count == 0


@pytest.mark.parametrize("keeps", [True, False])
def test_steps_may_alternate(keeps: bool) -> None:
    twins = Twins(_adam)
    for is_fused in (False, True, True, False, True, False, False, True):
        twins.step(is_fused, keeps)
        twins.check()
    assert twins.count == 4


def test_what_changes_between_steps_is_seen() -> None:
    """Though gradients stay where they are, so that nothing would have to be looked at again."""

    def set_count(optimizer: Any, parameters: Any) -> None:
        optimizer.state[parameters[2]]["step"] += 3

    def replace_state(optimizer: Any, parameters: Any) -> None:
        optimizer.state[parameters[1]]["exp_avg"] = torch.ones_like(parameters[1])

    def replace_weights(_: Any, parameters: Any) -> None:
        parameters[4].data = parameters[4].data.clone()

    def transpose(_: Any, parameters: Any) -> None:
        for tensor in (parameters[7], parameters[7].grad):
            tensor.data = tensor.data.as_strided((400, 401), (1, 400), tensor.storage_offset())

    def forget(optimizer: Any, parameters: Any) -> None:
        optimizer.state.pop(parameters[5])

    def change_options(optimizer: Any, _: Any) -> None:
        optimizer.param_groups[0].update(lr=0.5, weight_decay=0.25)

    twins = Twins(_adam)
    for change in (set_count, replace_state, replace_weights, transpose, forget, change_options):
        for _ in range(3):
            twins.step(keeps=True)
        for optimizer, parameters in zip(twins.optimizers, (twins.plain, twins.fused)):
            change(optimizer, parameters)
        twins.step(keeps=True)
        twins.step(keeps=True)
        twins.check()


def test_each_parameter_keeps_numbers_of_its_own() -> None:
    twins = Twins(_adam)
    twins.step()
    steps = [twins.optimizers[1].state[parameter]["step"] for parameter in twins.fused]
    assert len({step.data_ptr() for step in steps}) == len(steps)
    twins.step(is_fused=False)
    twins.check()


def test_groups_are_fused_by_themselves() -> None:
    def make(parameters: Any) -> Any:
        return optim.AdamW([{"params": parameters[::2], "lr": 0.1}, {"params": parameters[1::2]}, {"params": []}])

    twins = Twins(make)
    for _ in range(STEPS):
        twins.step()
    twins.check()
    assert twins.count == 2 * STEPS
    twins.optimizers[0].add_param_group({"params": [more := nn.Parameter(torch.ones(5))]})
    twins.optimizers[1].add_param_group({"params": [other := nn.Parameter(torch.ones(5))]})
    twins.plain.append(more)
    twins.fused.append(other)
    twins.step()
    twins.check()


def test_states_are_saved_and_loaded() -> None:
    """Between fused and plain ones, by way of a file."""
    twins = Twins(_adam)
    twins.step()
    twins.step()
    saved = [io.BytesIO(), io.BytesIO()]
    for optimizer, file in zip(twins.optimizers, saved):
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
    twins.step()
    for optimizer, file in zip(twins.optimizers, reversed(saved)):
        optimizer.load_state_dict(torch.load(file))
    twins.step()
    twins.step(is_fused=False)
    twins.step()
    twins.check()
    assert twins.count == 5


@pytest.mark.parametrize("used", [lambda i: i % 3 != 1, lambda i: i == 4, lambda _: False])
def test_parameters_without_gradients_stay(used: Callable[[int], bool]) -> None:
    """And those that get one later have taken fewer steps than their neighbours."""
    twins = Twins(_adam)
    for step in range(STEPS):
        twins.draw_gradients(used if step < 2 else lambda _: True)
        twins.optimizers[0].step()
        twins.optimizers[1].fuse_step()
        twins.check()


def test_nothing_moves_without_do_flatten() -> None:
    twins = Twins(_adam, do_flatten=False)
    places = [parameter.data_ptr() for parameter in twins.fused]
    twins.step()
    assert places == [parameter.data_ptr() for parameter in twins.fused]
    twins.check()
    assert twins.count == 0


def test_what_lies_together_is_fused_without_do_flatten() -> None:
    """In memory of the caller's, without gaps, in the order of the group."""
    flat, gradients = torch.randn(10), torch.zeros(10)
    views = [nn.Parameter(flat[:4].view(2, 2)), nn.Parameter(flat[4:5]), nn.Parameter(flat[5:])]
    plain = [nn.Parameter(view.detach().clone()) for view in views]
    fused, reference = fuse_optimizer(_adam(views), do_flatten=False), _adam(plain)
    for parameter, part in zip(views, torch.split(gradients, [4, 1, 5])):
        parameter.grad = part.view(parameter.shape)
    for _ in range(3):
        gradients.normal_()
        for one, other in zip(plain, views):
            assert other.grad is not None
            one.grad = other.grad.clone()
        reference.step()
        fused.fuse_step()
    assert all(torch.equal(one, other) for one, other in zip(plain, views))
    assert fused._bagua_fused_count == 3


def test_without_check_flatten_gradients_must_stay() -> None:
    for keeps, count in ((True, STEPS), (False, 0)):
        twins = Twins(_adam, do_flatten=False)
        twins.draw_gradients()
        twins.optimizers[1] = fuse_optimizer(_adam(twins.fused), check_flatten=False)
        for _ in range(STEPS):
            twins.step(keeps=keeps)
        twins.check()
        assert twins.count == count


def test_weights_are_laid_out_at_torchs_alignment() -> None:
    twins = Twins(_adam)
    twins.step()
    places = [parameter.data_ptr() for parameter in twins.fused]
    assert all(place % 64 == 0 for place in places)
    assert len({parameter.untyped_storage().data_ptr() for parameter in twins.fused}) == 1


def test_what_cannot_be_flat_is_stepped_by_itself() -> None:
    """A scalar, a complex and a transposed parameter, gradients of other strides, and sparse ones."""
    twins = Twins(lambda parameters: optim.SGD(parameters, lr=0.1), [(), (3,), (5, 4), (4,), (6, 2), (8,)])
    for parameters in (twins.plain, twins.fused):
        parameters[2].data = parameters[2].data.t().contiguous().t()
    for _ in range(STEPS):
        twins.draw_gradients()
        for parameters in (twins.plain, twins.fused):
            gradient = parameters[4].grad
            assert gradient is not None
            parameters[4].grad = gradient.t().contiguous().t()
        twins.optimizers[0].step()
        twins.optimizers[1].fuse_step()
    twins.check()
    embedding = nn.Embedding(5, 3, sparse=True)
    reference = copy.deepcopy(embedding)
    fused = fuse_optimizer(optim.SGD([*embedding.parameters(), nn.Parameter(torch.ones(2))], lr=0.1))
    plain = optim.SGD(reference.parameters(), lr=0.1)
    for net in (embedding, reference):
        net(torch.tensor([1, 3])).sum().backward()
    fused.fuse_step()
    plain.step()
    assert torch.equal(embedding.weight, reference.weight)


def test_ties_by_memory_stay() -> None:
    base = torch.randn(6)
    one, other, third = nn.Parameter(base), nn.Parameter(base), nn.Parameter(torch.randn(3))
    optimizer = fuse_optimizer(optim.SGD([one, third, other], lr=0.1))
    for parameter in (one, third):
        parameter.grad = torch.ones_like(parameter)
    optimizer.fuse_step()
    assert one.data_ptr() == other.data_ptr()
    assert torch.equal(one, other)


def test_shared_weights_stay_shared() -> None:
    net = nn.Linear(3, 2)
    net.share_memory()
    places = [parameter.data_ptr() for parameter in net.parameters()]
    fuse_optimizer(optim.SGD(net.parameters(), lr=0.1))
    assert places == [parameter.data_ptr() for parameter in net.parameters()]


def test_a_closure_sees_the_model() -> None:
    nets = [nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    inputs = torch.randn(6, 4)
    optimizers = [_adam(nets[0].parameters()), fuse_optimizer(_adam(nets[1].parameters()))]
    calls: list[Any] = []

    def closure_of(net: Any, optimizer: Any) -> Callable[[], Any]:
        def closure() -> Any:
            calls.append(optimizer.param_groups[0]["params"] == list(net.parameters()))
            optimizer.zero_grad()
            loss = net(inputs).square().mean()
            loss.backward()
            return loss

        return closure

    for _ in range(3):
        plain = optimizers[0].step(closure_of(nets[0], optimizers[0]))
        fused = optimizers[1].fuse_step(closure_of(nets[1], optimizers[1]))
        assert torch.equal(plain, fused)
    assert calls == [True] * 6
    assert all(torch.equal(one, other) for one, other in zip(nets[0].parameters(), nets[1].parameters()))
    assert optimizers[1]._bagua_fused_count == 3


@pytest.mark.parametrize("unscales_first", [False, True])
def test_a_scaler_skips_a_fused_step_after_an_overflow(unscales_first: bool) -> None:
    twins = Twins(_adam)
    scalers = [GradScaler("cpu", init_scale=8.0, growth_interval=2) for _ in range(2)]
    for step in range(6):
        twins.draw_gradients()
        for scaler, parameters in zip(scalers, (twins.plain, twins.fused)):
            scaler.scale(torch.ones(1))
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad *= scaler.get_scale()
            if step in (2, 3):
                assert parameters[4].grad is not None
                parameters[4].grad[0, 0] = float("inf")
        for scaler, optimizer, parameters in zip(scalers, twins.optimizers, (twins.plain, twins.fused)):
            if unscales_first:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_value_(parameters, 1.0)
        scalers[0].step(twins.optimizers[0])
        twins.optimizers[1].fuse_step(grad_scaler=scalers[1])
        for scaler in scalers:
            scaler.update()
        twins.check()
    assert twins.count == 4
    assert scalers[0].get_scale() == scalers[1].get_scale()
    twins.step(is_fused=False)
    twins.check()


def test_schedulers_count_fused_steps() -> None:
    twins = Twins(_adam)
    schedulers = [optim.lr_scheduler.StepLR(optimizer, 2, 0.5) for optimizer in twins.optimizers]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(STEPS):
            twins.step()
            for scheduler in schedulers:
                scheduler.step()
    twins.check()


def test_hooks_see_the_optimizers_own_groups() -> None:
    twins = Twins(_adam)
    seen: list[Any] = []
    optimizer = twins.optimizers[1]
    optimizer.register_step_pre_hook(lambda own, *_: seen.append(own.param_groups[0]["params"]))
    optimizer.register_step_post_hook(lambda own, *_: seen.append(list(own.state)))
    twins.step()
    assert [[id(p) for p in parameters] for parameters in seen] == [[id(p) for p in twins.fused]] * 2


def test_copies_are_plain() -> None:
    twins = Twins(_adam)
    twins.step()
    made = copy.deepcopy(twins.optimizers[1])
    assert is_fused_optimizer(twins.optimizers[1])
    assert not is_fused_optimizer(made)
    with pytest.raises(FailedPrecondition, match="no fused optimizer"):
        fuse_step(made)
    assert is_fused_optimizer(fuse_optimizer(made))


class _Broken(optim.SGD):
    """Fails in the middle of its steps."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        raise ArithmeticError("in the step")


def test_a_step_that_fails_leaves_the_optimizer_as_it_was() -> None:
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    optimizer = fuse_optimizer(_Broken(parameters, lr=0.1), elementwise=True)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ArithmeticError, match="in the step"):
        optimizer.fuse_step()
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in parameters]
    assert not optimizer.state


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: optim.Adafactor(parameters),
        lambda parameters: QAdamOptimizer(parameters, warmup_steps=2),
        lambda parameters: optim.Muon([p for p in parameters if p.dim() == 2]),
    ],
)
def test_others_are_stepped_plainly_with_a_warning(make: Make) -> None:
    with pytest.warns(UserWarning, match="is not known to treat each element by itself"):
        twins = Twins(make, [(3, 2), (4, 4), (2, 5)])
    for is_fused in (True, False, True):
        twins.step(is_fused)
    twins.check()
    assert twins.count == 0


def test_lbfgs_takes_its_closure() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = fuse_optimizer(optim.LBFGS([parameter]), elementwise=False)

    def closure() -> Any:
        optimizer.zero_grad()
        loss: Any = parameter.square().sum()
        loss.backward()
        return loss

    assert optimizer.fuse_step(closure).item() == 5.0
    assert float(parameter.abs().max()) < 1e-3


@pytest.mark.parametrize("option", ["capturable", "differentiable"])
def test_options_that_bind_memory_are_refused(option: str) -> None:
    optimizer = optim.Adam([nn.Parameter(torch.ones(2))])
    optimizer.param_groups[0][option] = True
    with pytest.raises(InvalidArgument, match=f"group 0 of this Adam has {option}=True"):
        fuse_optimizer(optimizer)
    optimizer.param_groups[0][option] = False
    fused = fuse_optimizer(optimizer)
    fused.param_groups[0][option] = True
    with pytest.raises(InvalidArgument, match=option):
        fused.fuse_step()


def test_what_is_no_optimizer_or_fused_already_is_refused() -> None:
    nothing: Any = None
    with pytest.raises(InvalidArgument, match="is a NoneType"):
        fuse_optimizer(nothing)
    optimizer = fuse_optimizer(optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1))
    with pytest.raises(RuntimeError, match="is a fused optimizer already"):
        fuse_optimizer(optimizer)
