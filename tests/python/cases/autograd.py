"""What a user does with gradients between and within backward passes: every parameter stays synchronised, or an error
says which is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.errors import PeltonError
from torch import nn
from torch.utils.checkpoint import checkpoint

from cases.checks import (
    SHAPE,
    assert_same,
    assert_same_on_all_ranks,
    batch,
    expected,
    gradients,
    local_gradients,
    make_mlp,
    mean_of,
    raises,
    rank_and_size,
    run_backward,
    seeded,
    square_loss,
    wrap,
)
from cases.registry import case


def _flat_or_not(check: Callable[[Any], None]) -> None:
    """With gradients that lie in the buckets, and with gradients that are communicated where they lie."""
    for flatten in (True, False):
        check(_wrapped(flatten))


def _wrapped(flatten: bool = True) -> Any:
    model = seeded(0, make_mlp)
    algorithm = bagua.algorithms.gradient_allreduce.GradientAllReduceAlgorithm()
    return model.with_bagua([], algorithm, do_flatten=flatten)


def _step(model: Any, step: int) -> None:
    model.zero_grad()
    run_backward(model, step)
    assert_same(gradients(model), expected(make_mlp, step))


@case(2, 3)
def a_gradient_whose_data_was_replaced() -> None:
    def check(model: Any) -> None:
        for step in range(4):
            _step(model, step)
            for parameter in model.parameters():
                parameter.grad.data = torch.nan_to_num(parameter.grad.data * 2.0)
            if step == 2:
                model.zero_grad(set_to_none=False)
                run_backward(model, 7)
                assert_same(gradients(model), expected(make_mlp, 7))

    _flat_or_not(check)


@case(2)
def a_gradient_that_was_set_to_other_memory() -> None:
    def check(model: Any) -> None:
        for step in range(4):
            _step(model, step)
            for parameter in model.parameters():
                parameter.grad.set_(torch.full_like(parameter, 7.0))

    _flat_or_not(check)


@case(2, 3)
def gradients_that_are_kept_keep_their_values() -> None:
    def check(model: Any) -> None:
        kept: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        for step in range(4):
            _step(model, step)
            held = [parameter.grad for parameter in model.parameters()]
            held += [gradient.detach().view(-1)[1:] for gradient in held]
            kept.append((held, [tensor.clone() for tensor in held]))
            for tensors, values in kept:
                assert all(map(torch.equal, tensors, values)), f"a gradient of before step {step} has changed"
        model.bagua_ddp.detach()
        for tensors, values in kept:
            assert all(map(torch.equal, tensors, values))

    _flat_or_not(check)


@case(2)
def a_kept_gradient_of_a_parameter_that_is_not_used_again() -> None:
    rank, _ = rank_and_size()

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, inputs: torch.Tensor, second: bool) -> torch.Tensor:
            return (self.second if second else self.first)(inputs)

    model = wrap(seeded(0, Branches))
    for step in range(3):
        model.zero_grad()
        model(batch(rank, step, *SHAPE), False).square().mean().backward()
    kept = model.first.weight.grad
    values = kept.clone()
    model.zero_grad()
    model(batch(rank, 3, *SHAPE), rank == 0).square().mean().backward()
    assert torch.equal(kept, values)
    assert_same_on_all_ranks([parameter.grad for parameter in model.parameters()])


@case(2)
def a_gradient_that_is_dropped_or_replaced_within_backward() -> None:
    """By a hook of an earlier layer, after it was handed over: what comes back is the result all the same."""

    def check(model: Any) -> None:
        def disturb(_: torch.Tensor) -> None:
            model[2].weight.grad = None
            if model[2].bias.grad is not None:
                model[2].bias.grad = torch.ones_like(model[2].bias)

        _step(model, 0)
        model[0].weight.register_post_accumulate_grad_hook(disturb)
        for step in range(1, 4):
            _step(model, step)

    _flat_or_not(check)


@case(2)
def a_hook_that_looks_at_gradients_or_changes_them() -> None:
    _rank, size = rank_and_size()
    model = _wrapped()
    norms: list[float] = []

    def look(parameter: Any) -> None:
        norms.append(float(parameter.grad.norm()))
        if parameter is model[0].weight:
            parameter.grad.data = parameter.grad.data * 2.0

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(look)
    for step in range(3):
        model.zero_grad()
        run_backward(model, step)
        per_rank = [local_gradients(seeded(0, make_mlp), batch(r, step, *SHAPE)) for r in range(size)]
        for found in per_rank:
            found["0.weight"] *= 2.0
        assert_same(gradients(model), mean_of(per_rank))
    assert len(norms) == 12


def _refuses_a_step_in_backward(hook: Callable[[Any, dict[Any, torch.optim.SGD]], None]) -> None:
    model = _wrapped()
    run_backward(model)
    model.zero_grad()
    bagua.barrier()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: hook(p, optimizers))
    with raises(PeltonError, "2.bias", "steps within backward", "after backward() has returned"):
        run_backward(model, 1)
    with raises(PeltonError, "2.bias"):
        model(batch(0, 0, *SHAPE))


@case(2)
def an_optimizer_that_steps_and_clears_within_backward() -> None:
    def step(parameter: Any, optimizers: dict[Any, torch.optim.SGD]) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    _refuses_a_step_in_backward(step)


@case(2)
def an_optimizer_that_steps_within_backward_and_leaves_the_gradient() -> None:
    _refuses_a_step_in_backward(lambda parameter, optimizers: optimizers[parameter].step())


@case(2)
def an_optimizer_that_steps_on_one_rank_only() -> None:
    """The other hears of it at once, and why."""
    rank, _ = rank_and_size()
    model = _wrapped()
    run_backward(model)
    bagua.barrier()
    model.zero_grad()
    if rank == 0:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: torch.Tensor) -> None:
            optimizer.step()
            optimizer.zero_grad()

        model[0].weight.register_post_accumulate_grad_hook(step)
    with raises(PeltonError, "0.weight", "steps within backward"):
        run_backward(model, 1)


@case(2)
def torchs_optimizer_in_backward() -> None:
    from torch.distributed.optim import _apply_optimizer_in_backward as apply  # type: ignore[attr-defined]

    model = seeded(0, make_mlp)
    apply(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    with raises(PeltonError, "'0.weight'", "_apply_optimizer_in_backward"):
        wrap(model)
    model = _wrapped()
    apply(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    bagua.barrier()
    with raises(PeltonError, "steps within backward"):
        run_backward(model)


@case(2)
def an_exception_within_backward_is_heard_by_all() -> None:
    rank, _ = rank_and_size()
    model = _wrapped()
    run_backward(model)
    bagua.barrier()
    model.zero_grad()

    def fail(_: torch.Tensor) -> None:
        raise ValueError("the user's own")

    if rank == 0:
        model[0].weight.register_post_accumulate_grad_hook(fail)
        with raises(ValueError, "the user's own"):
            run_backward(model, 1)
    else:
        with raises(PeltonError, "rank 0", "ended in the middle of its round"):
            run_backward(model, 1)
    with raises(PeltonError, "ended in the middle of its round"):
        model(batch(0, 0, *SHAPE))


@case(2)
def an_error_at_the_end_of_backward_is_heard_by_all() -> None:
    """A gradient that has become sparse while it waited for its round."""
    rank, _ = rank_and_size()
    model = _wrapped()
    run_backward(model)
    bagua.barrier()
    model.zero_grad()
    if rank == 0:
        with model.no_sync():
            run_backward(model, 1)
        model[0].weight.grad = model[0].weight.grad.to_sparse()
    with raises(PeltonError, "0.weight", "sparse"):
        (model[2](torch.ones(1, 10)).sum() if rank == 0 else square_loss(model, batch(1, 2, *SHAPE))).backward()


class _Branch(nn.Module):
    """Of which one branch is each rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.own = nn.Linear(6, 3), nn.Linear(6, 3)
        for parameter in self.own.parameters():
            parameter.expert = True  # type: ignore[attr-defined]

    def forward(self, inputs: torch.Tensor, own: bool) -> torch.Tensor:
        return (self.own if own else self.shared)(inputs)


@case(2, 3)
def a_rank_that_uses_no_parameter_takes_part() -> None:
    rank, size = rank_and_size()
    model = wrap(seeded(0, _Branch))
    for step in range(4):
        model.zero_grad()
        model(batch(rank, step, *SHAPE), own=rank == 0 or step == 2).square().mean().backward()
        wanted = seeded(0, _Branch)
        per_rank = [
            local_gradients(wanted, batch(r, step, *SHAPE), lambda m, x: m(x, own=False).square().mean())
            for r in range(size)
        ]
        per_rank[0] = dict.fromkeys(per_rank[0])
        found, mean = gradients(model), mean_of(per_rank)
        for name in ("shared.weight", "shared.bias"):
            if step == 2:
                assert found[name] is None, "no rank has used it"
            else:
                assert torch.equal(found[name], mean[name])


@case(2)
def gradients_of_inputs_alone_are_no_round() -> None:
    """torch.autograd.grad, and backward(inputs=...), on one rank alone."""
    rank, _ = rank_and_size()
    model = _wrapped()
    _step(model, 0)
    if rank == 0:
        inputs = batch(9, 9, *SHAPE).requires_grad_()
        torch.autograd.grad(model(inputs).sum(), inputs)
        model(inputs).sum().backward(inputs=[inputs])
        assert inputs.grad is not None
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        model(inputs).sum().backward()  # what is frozen altogether has no rounds
        for parameter in model.parameters():
            parameter.requires_grad_(True)
    _step(model, 1)
    model.zero_grad()
    square_loss(model, batch(rank, 2, *SHAPE)).backward(inputs=list(model.parameters()))
    assert_same(gradients(model), expected(make_mlp, 2))


class _Shared(nn.Module):
    """A layer that is applied several times, each within a re-entrant checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.layer, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(2, 2)
        self.is_reentrant = True

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.inward(inputs)
        for _ in range(3):
            if self.is_reentrant:
                hidden = checkpoint(lambda x: self.layer(x).tanh(), hidden, use_reentrant=True)
            else:
                hidden = self.layer(hidden).tanh()
        return hidden


@case(2, 3)
def a_shared_layer_under_reentrant_checkpointing() -> None:
    rank, size = rank_and_size()
    for flatten in (True, False):
        model = seeded(0, _Shared)
        model = model.with_bagua(
            [], bagua.algorithms.gradient_allreduce.GradientAllReduceAlgorithm(), do_flatten=flatten
        )
        for step in range(4):
            model.zero_grad()
            square_loss(model, batch(rank, step, *SHAPE)).backward()
            reference = seeded(0, _Shared)
            assert_same(
                gradients(model),
                mean_of([local_gradients(reference, batch(r, step, *SHAPE)) for r in range(size)]),
            )


@case(2)
def a_layer_that_is_shared_under_checkpointing_from_the_second_step_on() -> None:
    model = seeded(0, _Shared)
    model.is_reentrant = False
    model = wrap(model)
    run_backward(model)
    model.is_reentrant = True
    bagua.barrier()
    with raises(PeltonError, "layer.", "use_reentrant=False"):
        run_backward(model, 1)


@case(2)
def a_graph_of_before_is_run_after_detaching() -> None:
    rank, _ = rank_and_size()
    model = _wrapped()
    run_backward(model)
    model.zero_grad()
    loss = square_loss(model, batch(rank, 1, *SHAPE))

    inner = model.bagua_ddp

    def detach(_: torch.Tensor) -> None:
        inner.detach()

    model[0].weight.register_hook(detach)
    loss.backward(retain_graph=True)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@case(2, 3)
def a_backward_pass_in_evaluation_mode_on_one_rank() -> None:
    """It would be added to the others' training, and every later round be off by one."""
    rank, _ = rank_and_size()
    model = _wrapped()
    _step(model, 0)
    bagua.barrier()
    if rank == 0:
        model.eval()
    with raises(PeltonError, "evaluation mode", "training mode", "no_sync()"):
        run_backward(model, 1)
    with raises(PeltonError, "evaluation mode"):
        model.train()(batch(0, 0, *SHAPE))


@case(2)
def a_backward_pass_in_evaluation_mode_on_one_rank_within_no_sync() -> None:
    rank, _ = rank_and_size()
    model = _wrapped()
    for step in range(3):
        if rank == 0:
            model.eval()
            inputs = batch(9, step, *SHAPE).requires_grad_()
            with model.no_sync():
                model(inputs).sum().backward()
            assert inputs.grad is not None
            model.train()
        _step(model, step)


@case(2)
def training_in_evaluation_mode_on_all_ranks() -> None:
    """As under DDP: fine-tuning with frozen dropout is training."""
    rank, _ = rank_and_size()
    model = _wrapped().eval()
    _step(model, 0)
    model.train()
    outputs = model(batch(rank, 1, *SHAPE))
    model.eval()
    model(batch(rank, 5, *SHAPE))  # a validation in between
    model.zero_grad()
    outputs.square().mean().backward()
    assert_same(gradients(model), expected(make_mlp, 1))


def _conv() -> Any:
    return nn.Conv2d(3, 4, 3)


@case(2)
def strides_that_differ_between_ranks() -> None:
    model = seeded(0, _conv)
    if bagua.get_rank() == 1:
        model = model.to(memory_format=torch.channels_last)
    with raises(PeltonError, "weight", "strides [27, 9, 3, 1]", "strides [27, 1, 9, 3]"):
        wrap(model)


@case(2)
def strides_of_channels_last_on_all_ranks() -> None:
    rank, size = rank_and_size()
    model = wrap(seeded(0, _conv).to(memory_format=torch.channels_last))
    for step in range(3):
        model.zero_grad()
        square_loss(model, batch(rank, step, 2, 3, 5, 5)).backward()
        reference = seeded(0, _conv).to(memory_format=torch.channels_last)
        per_rank = [local_gradients(reference, batch(r, step, 2, 3, 5, 5)) for r in range(size)]
        assert_same(gradients(model), mean_of(per_rank))


class _Spectral(nn.Module):
    """Weights of frequencies, as of an operator in Fourier space."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, dtype=torch.cfloat))
        self.wide = nn.Parameter(torch.randn(4, dtype=torch.cdouble))
        self.last = nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last((inputs.to(torch.cfloat) @ self.weight * self.wide.to(torch.cfloat)).abs())


@case(2, 3)
def gradients_of_complex_parameters() -> None:
    rank, size = rank_and_size()
    for average in (True, False):
        model = wrap(seeded(0, _Spectral), average=average)
        for step in range(3):
            model.zero_grad()
            square_loss(model, batch(rank, step, 4, 6)).backward()
            per_rank = [local_gradients(seeded(0, _Spectral), batch(r, step, 4, 6)) for r in range(size)]
            for name, expected_gradient in mean_of(per_rank, average).items():
                torch.testing.assert_close(gradients(model)[name], expected_gradient)


@case(2)
def complex_parameters_are_refused_by_name() -> None:
    from pelton.torch_api.algorithms import Algorithm

    for name in ("diloco", "async", "low_precision_decentralized", "bytegrad"):
        model: Any = nn.ParameterDict({"real": torch.zeros(3), "wave": torch.zeros(3, dtype=torch.cfloat)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kinds = {"diloco": {"interval": 2}, "async": {"warmup_steps": 0}}
        with raises(PeltonError, "wave", "complex64", "async_model_average" if name == "async" else name):
            model.with_bagua([optimizer], Algorithm.init(name, **kinds.get(name, {})))
