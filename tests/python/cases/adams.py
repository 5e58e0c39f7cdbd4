"""Adams whose moments are averaged, where something is out of the ordinary: rare parameters, scalers, overflows."""

from __future__ import annotations

import contextlib
import copy
import math
import unittest.mock
import warnings
from typing import Any

import torch
import torch.amp.grad_scaler
from pelton._training.algorithms import _defaults
from pelton.errors import FailedPrecondition, InvalidArgument
from pelton.torch_api.algorithms.one_bit_adam import OneBitAdamAlgorithm, OneBitAdamOptimizer
from pelton.torch_api.algorithms.q_adam import QAdamAlgorithm, QAdamOptimizer
from pelton.torch_api.algorithms.zero_one_adam import ZeroOneAdamAlgorithm, ZeroOneAdamOptimizer
from torch import nn

from cases.checks import SHAPE, assert_same_on_all_ranks, batch, make_mlp, raises, rank_and_size, seeded, square_loss
from cases.registry import case
from cases.worlds import run, train_step


class _Sometimes(nn.Module):
    """Two layers, of which the second is used when told."""

    def __init__(self) -> None:
        super().__init__()
        self.common, self.branch = nn.Linear(6, 3), nn.Linear(6, 3)
        self.uses_branch = True

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out = self.common(inputs)
        return out + self.branch(inputs) if self.uses_branch else out


def _two_stage(kind: Any, model: Any, codec: str | None, **options: Any) -> Any:
    optimizer = kind(model.parameters(), lr=0.01, warmup_steps=6, **options)
    algorithm = QAdamAlgorithm if kind is QAdamOptimizer else OneBitAdamAlgorithm
    model.with_bagua([optimizer], algorithm(optimizer, hierarchical=False, codec=codec))
    return optimizer


def _before_batch_norm() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


@case(2)
def a_bias_before_a_batch_norm_does_not_move_by_the_signs_noise() -> None:
    """Its gradients are what rounding leaves, and the messages' scale is that of the others."""
    rank, _ = rank_and_size()
    for kind in (OneBitAdamOptimizer, ZeroOneAdamOptimizer):
        model = seeded(0, _before_batch_norm)
        if kind is OneBitAdamOptimizer:
            _two_stage(kind, model, "one_bit")
        else:
            optimizer = ZeroOneAdamOptimizer(model.parameters(), lr=0.01, variance_freeze_step=6)
            model.with_bagua([optimizer], ZeroOneAdamAlgorithm(optimizer, hierarchical=False))
        before = model[0].bias.detach().clone()
        inner = model.bagua_ddp.bagua_optimizers[0]
        for step in range(12):
            inner.zero_grad()
            inputs = batch(rank, step, 32, 8)
            nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long()).backward()
            inner.step()
        moved = float((model[0].bias - before).abs().max())
        assert moved < 0.2, (kind, moved)


@case(2, 3)
def a_parameter_that_is_rarely_used_stays_the_same_on_all_ranks() -> None:
    """Its warm-up goes on when the algorithm's has ended, or begins then."""
    for kind, codec in ((QAdamOptimizer, None), (QAdamOptimizer, "one_bit"), (OneBitAdamOptimizer, None)):
        for first_use in (0, 9):
            model = seeded(rank_and_size()[0], _Sometimes)
            optimizer = _two_stage(kind, model, codec)
            for step in range(24):
                model.uses_branch = step >= first_use and step % 2 == 0
                train_step(model, optimizer, step)
                state = optimizer.state_of(model.branch.weight)
                assert_same_on_all_ranks([*model.parameters(), state["exp_avg"], state["exp_avg_sq"]])
            assert state["step"] == (12 if first_use == 0 else 7)
            assert float(state["exp_avg_sq"].min()) > 0, (kind, first_use)
            assert float(model.branch.weight.detach().abs().max()) < 1


@case(2)
def a_parameter_that_is_no_longer_used_comes_to_rest() -> None:
    """As Adam has it: where `.grad` is a tensor of zeros, the moment decays."""
    moves = []
    for kind in (torch.optim.Adam, QAdamOptimizer):
        model = seeded(0, _Sometimes)
        optimizer = _two_stage(kind, model, None) if kind is QAdamOptimizer else kind(model.parameters(), lr=0.01)
        for step in range(60):
            model.uses_branch = step < 9
            before = model.branch.weight.detach().clone()
            optimizer.zero_grad(set_to_none=False)
            run(model, rank_and_size()[0], step)
            optimizer.step()
        moves.append(float((model.branch.weight.detach() - before).abs().max()))
    assert moves[1] < 3 * moves[0] < 1e-3, moves


def _scaled_weights(kind: Any, scale: float | None, codec: str, *, unscales: bool = False) -> list[torch.Tensor]:
    """What training with a scaler leads to; with a rank's overflow in step 9, in which nobody must step."""
    rank, size = rank_and_size()
    model = seeded(0, make_mlp)
    optimizer = _two_stage(kind, model, codec)
    scaler = torch.amp.grad_scaler.GradScaler("cpu", scale or 1.0, growth_interval=1000, enabled=scale is not None)
    for step in range(14):
        optimizer.zero_grad()
        overflows = step == 9 and rank == size - 1
        loss = square_loss(model, batch(rank, step, *SHAPE)) * (math.inf if overflows else 1)
        scaler.scale(loss).backward()
        if scale is None and step == 9:
            continue
        if unscales:
            scaler.unscale_(optimizer)
        before = [p.detach().clone() for p in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        if step == 9:
            assert all(map(torch.equal, before, model.parameters())), "a step with an overflow moved the weights"
            assert scaler.get_scale() == scale / 2, scaler.get_scale()  # type: ignore[operator]
    assert_same_on_all_ranks(list(model.parameters()))
    return [p.detach() for p in model.parameters()]


@case(2)
def scaled_gradients_move_weights_as_plain_ones() -> None:
    """And an overflow on one rank costs all of them a step, and nothing else."""
    for kind in (QAdamOptimizer, OneBitAdamOptimizer):
        plain = _scaled_weights(kind, None, "block_uint8")
        for unscales in (False, True):
            scaled = _scaled_weights(kind, 1024.0, "block_uint8", unscales=unscales)
            for found, wanted in zip(scaled, plain):
                assert torch.allclose(found, wanted, rtol=0.02, atol=2e-3), (kind, (found - wanted).abs().max())


@case(2)
def clipped_gradients_move_weights_less() -> None:
    """After the warm-up as before it; the norm that clips is the same on all ranks."""
    moves = []
    for limit in (1e9, 1e-3):
        model = seeded(0, make_mlp)
        optimizer = _two_stage(QAdamOptimizer, model, None)
        for step in range(8):
            train_step(model, optimizer, step)
        state = optimizer.state[model[0].weight]
        before = state["exp_avg"].clone()
        optimizer.zero_grad()
        run(model, rank_and_size()[0], 9)
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        assert_same_on_all_ranks(list(model.parameters()))
        moves.append(float((state["exp_avg"] - 0.9 * before).norm()))
    assert moves[1] <= 1.01e-4 < moves[0], moves


@case(2)
def a_gradient_that_is_not_finite_spoils_no_moment() -> None:
    """Where nobody steps; with every codec it is seen on all ranks."""
    rank, _ = rank_and_size()
    for codec in ("min_max_uint8", "float16", "bfloat16", "block_uint8", "block_int4", "one_bit", "top_k"):
        model = seeded(0, make_mlp)
        optimizer = _two_stage(QAdamOptimizer, model, codec)
        for step in range(8):
            train_step(model, optimizer, step)
        for value in (math.nan, math.inf):
            optimizer.zero_grad()
            (square_loss(model, batch(rank, 9, *SHAPE)) * (value if rank == 1 else 1)).backward()
            assert not all(bool(p.grad.isfinite().all()) for p in model.parameters()), (codec, value)
        for step in range(10, 13):
            train_step(model, optimizer, step)
        assert all(bool(p.isfinite().all()) for p in model.parameters()), codec
        assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def elements_without_a_gradient_do_not_explode() -> None:
    """A sign is never zero: where the variance is, the weights stay."""
    model = seeded(0, make_mlp)
    optimizer = _two_stage(QAdamOptimizer, model, "one_bit", freeze_variance_correction=False, variance_floor=0.0)
    before = model[0].weight.detach()[:, 0].clone()
    for step in range(12):
        inputs = batch(rank_and_size()[0], step, *SHAPE)
        inputs[:, 0] = 0
        optimizer.zero_grad()
        square_loss(model, inputs).backward()
        optimizer.step()
    assert torch.equal(model[0].weight.detach()[:, 0], before)


@case(2)
def the_optimizer_must_own_what_is_communicated() -> None:
    for kind, algorithm in (
        (QAdamOptimizer, QAdamAlgorithm),
        (OneBitAdamOptimizer, OneBitAdamAlgorithm),
        (ZeroOneAdamOptimizer, ZeroOneAdamAlgorithm),
    ):
        model: Any = seeded(0, _Sometimes)
        adam: Any = kind(model.common.parameters())
        head = torch.optim.SGD(model.branch.parameters(), lr=0.1)
        with raises(InvalidArgument, "branch.weight, branch.bias", kind.__name__, "add_param_group"):
            model.with_bagua([adam, head], algorithm(adam))
        with raises(InvalidArgument, kind.__name__, "not among them"):
            model.with_bagua([head], algorithm(adam))


@case(2)
def parameters_and_states_may_come_later() -> None:
    """A group that is added, a state that is cleared: both are used on all ranks alike."""
    for kind, algorithm in (
        (QAdamOptimizer, QAdamAlgorithm),
        (OneBitAdamOptimizer, OneBitAdamAlgorithm),
        (ZeroOneAdamOptimizer, ZeroOneAdamAlgorithm),
    ):
        model: Any = seeded(rank_and_size()[0], _Sometimes)
        for parameter in model.branch.parameters():
            parameter.requires_grad_(False)
        adam: Any = kind(model.common.parameters(), lr=0.01)
        model.with_bagua([adam], algorithm(adam, hierarchical=False))
        for step in range(30):
            if step == 5:
                for parameter in model.branch.parameters():
                    parameter.requires_grad_(True)
                adam.add_param_group({"params": list(model.branch.parameters())})
                before = model.branch.weight.detach().clone()
            if step == 20:
                adam.state.clear()
            train_step(model, adam, step)
        assert_same_on_all_ranks(list(model.parameters()))
        assert not torch.equal(before, model.branch.weight.detach())


@case(2)
def zero_one_adam_exchanges_a_state_that_was_loaded() -> None:
    for is_late in (False, True):
        model = seeded(rank_and_size()[0], make_mlp)
        optimizer = ZeroOneAdamOptimizer(model.parameters(), lr=0.01)
        model.with_bagua([optimizer], ZeroOneAdamAlgorithm(optimizer, hierarchical=False))
        for step in range(18):
            train_step(model, optimizer, step)
        optimizer.zero_grad()
        if not is_late:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        run(model, rank_and_size()[0], 18)
        if is_late:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            for _ in range(2):  # step 19 updates the second moments and needs no exchange
                with contextlib.suppress(FailedPrecondition):
                    optimizer.step()
            with raises(FailedPrecondition, "was replaced", "before the forward pass"):
                optimizer.step()
            continue
        for step in range(19, 30):
            optimizer.step()
            optimizer.zero_grad()
            run(model, rank_and_size()[0], step)
        optimizer.step()
        assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def zero_one_adam_knows_that_momenta_differ_where_nothing_was_learnt() -> None:
    """A group whose rate is 0 does not bring its momenta together: the next step that moves it must exchange."""
    model = seeded(rank_and_size()[0], _Sometimes)
    groups = [{"params": list(part.parameters()), "lr": lr} for part, lr in ((model.common, 0.01), (model.branch, 0.0))]
    optimizer = ZeroOneAdamOptimizer(groups)
    model.with_bagua([optimizer], ZeroOneAdamAlgorithm(optimizer, hierarchical=False))
    for step in range(26):
        if step == 18:
            assert optimizer.updates_variance(19)
            assert not optimizer.updates_variance(18)
            optimizer.param_groups[1]["lr"] = 0.01
        train_step(model, optimizer, step)
        assert_same_on_all_ranks(list(model.parameters()))


@case(1)
def zero_one_adam_refuses_what_would_go_wrong() -> None:
    model = seeded(0, make_mlp)
    optimizer = ZeroOneAdamOptimizer(model.parameters(), variance_freeze_step=2)
    before = [p.detach().clone() for p in model.parameters()]
    scaler = torch.amp.grad_scaler.GradScaler("cpu", init_scale=8.0)
    scaler.scale(square_loss(model, batch(0, 0, *SHAPE))).backward()
    with raises(FailedPrecondition, "ZeroOneAdamOptimizer", "GradScaler", "without a scaler"):
        scaler.step(optimizer)
    assert all(map(torch.equal, before, model.parameters()))
    for step in range(3):
        train_step(model, optimizer, step)
    late = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [late]})
    with raises(FailedPrecondition, "param_groups[1]", "variance_freeze_step"):
        train_step(model, optimizer, 3)


@case(1)
def variances_that_will_diverge_are_warned_of() -> None:
    for floor, warns in ((0.0, True), (0.01, False)):
        weights = nn.Parameter(torch.ones(100))
        optimizer = QAdamOptimizer([weights], warmup_steps=4, variance_floor=floor)
        weights.grad = torch.ones(100)
        weights.grad[:2] = 1e-4
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(8):
                optimizer.step()
        texts = [str(warning.message) for warning in caught]
        assert len(texts) == warns, texts
        assert not warns or "2.0% of the second moments" in texts[0], texts


@case(1)
def baguas_defaults_are_those_of_its_scripts() -> None:
    parameters = list(make_mlp().parameters())
    native = QAdamOptimizer(parameters)
    assert (native.freeze_variance_correction, native.variance_floor) == (True, 0.01)
    with raises(ValueError, "warmup_steps=1", "2 or more"):
        QAdamOptimizer(parameters, warmup_steps=1)
    with unittest.mock.patch.object(_defaults, "are_baguas", True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        baguas = QAdamOptimizer(parameters, warmup_steps=33)
        QAdamOptimizer(parameters, warmup_steps=1, freeze_variance_correction=False)
    assert (baguas.freeze_variance_correction, baguas.variance_floor) == (False, 0.0)
    assert ["5.6 times" in str(warning.message) for warning in caught] == [True]
