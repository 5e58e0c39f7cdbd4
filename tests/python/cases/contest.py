"""Training while algorithms that are equally right have turns, and schedules between hosts."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pelton
import pelton.torch_api as bagua
import torch
from pelton.errors import InvalidArgument, Unsupported
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm, GradientAllReduceAlgorithmImpl
from pelton.torch_api.algorithms.q_adam import QAdamAlgorithm, QAdamOptimizer
from torch import nn

from cases.checks import assert_same_on_all_ranks, raises, run_backward, seeded
from cases.registry import NotRun, case

STEPS = 66  # 58 for two setups, and some more; the buckets are tuned after them
Hook = Callable[[Any, int], None]


def _make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))


def _nothing(model: Any, step: int) -> None:
    pass


def _trained(
    hook: Hook, algorithm: Algorithm | str = "gradient_allreduce", steps: int = STEPS, before_step: Hook = _nothing
) -> Any:
    model: Any = seeded(0, _make_net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model = pelton.wrap(model, optimizer, algorithm)
    for step in range(steps):
        hook(model, step)
        optimizer.zero_grad()
        run_backward(model, step)
        before_step(model, step)
        optimizer.step()
    return model


@contextlib.contextmanager
def _lines() -> Iterator[list[str]]:
    lines: list[str] = []
    pelton.set_log_callback(lambda _, line: lines.append(line) if "autotune" in line else None)
    try:
        yield lines
    finally:
        pelton.set_log_callback(None)


class _SlowImpl(GradientAllReduceAlgorithmImpl):
    """What makes it slow is no way to order anything: it is the difference that is to be found."""

    def step_is_complete(self) -> None:
        time.sleep(0.05)


class _Slow(GradientAllReduceAlgorithm):
    def reify(self, process_group: Any) -> Any:
        return _SlowImpl(process_group)


@case(2, 3)
def the_fastest_alternative_is_taken() -> None:
    with _lines() as lines:
        model = _trained(
            lambda model, step: pelton.autotune(model, alternatives=["gradient_allreduce"]) if step == 1 else None,
            _Slow(),
        )
    assert type(model.bagua_ddp.bagua_algorithm) is GradientAllReduceAlgorithmImpl
    assert_same_on_all_ranks(list(model.parameters()))
    if bagua.get_rank() == 0:
        assert sum(": taken" in line and "ms a step with gradient_allreduce(" in line for line in lines) == 1, lines
        assert sum("autotune goes on with gradient_allreduce(" in line for line in lines) == 1, lines


@case(2)
def a_slower_alternative_is_not_taken() -> None:
    """And the weights are those without: the two say the same."""
    model = _trained(lambda model, step: pelton.autotune(model, alternatives=[_Slow()]) if step == 1 else None)
    assert type(model.bagua_ddp.bagua_algorithm) is GradientAllReduceAlgorithmImpl
    plain = _trained(lambda model, step: None)
    for mine, theirs in zip(model.parameters(), plain.parameters()):
        assert torch.equal(mine, theirs)
    assert model.bagua_ddp.is_tuning, "the buckets have their turn once the algorithm is chosen"


@case(2)
def what_an_alternative_remembers_waits_for_its_next_turn() -> None:
    """Of three, so that each comes again after others."""
    left: dict[str, Any] = {}
    seen: list[str] = []
    returned: list[str] = []

    def state_of(model: Any) -> tuple[str, Any]:
        state = model.bagua_ddp.algorithm_state_dict()
        kept = {(entry["key"], entry["tensor"]): (entry["begin"], entry["values"]) for entry in state["tensors"]}
        return f"{state['algorithm']} {state['options'].get('codec', '')}", kept

    def begin(model: Any, step: int) -> None:
        if step == 2:
            one_bit = Algorithm.init("bytegrad", codec="one_bit", hierarchical=False)
            pelton.autotune(model, alternatives=[one_bit, "gradient_allreduce"])
        name, kept = state_of(model)
        if name in left and seen[-1] != name:
            assert set(kept) == set(left[name])
            for which, (first, values) in kept.items():
                assert first == left[name][which][0] and torch.equal(values, left[name][which][1]), which
            returned.append(name)
        seen.append(name)

    def end(model: Any, step: int) -> None:
        name, kept = state_of(model)
        left[name] = kept

    algorithm = Algorithm.init("bytegrad", codec="top_k", hierarchical=False)
    model = _trained(begin, algorithm, STEPS + 12, end)
    assert len(set(seen)) == 3, set(seen)
    assert any("one_bit" in name or "top_k" in name for name in returned), returned
    assert any(values.any() for _, values in left["bytegrad top_k"].values()), "it remembers something"
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def a_frozen_parameter_may_be_installed_again() -> None:
    """It counts as unused; loading a state registers the model again."""
    model: Any = seeded(0, _make_net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model = pelton.wrap(model, optimizer)
    run_backward(model, 0)
    frozen = next(model.parameters()).requires_grad_(False)
    before = frozen.clone()
    optimizer.zero_grad()
    model.bagua_ddp.load_algorithm_state_dict(model.bagua_ddp.algorithm_state_dict())
    assert not frozen.requires_grad
    run_backward(model, 1)
    optimizer.step()
    assert torch.equal(frozen, before)
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def a_model_may_be_registered_again_meanwhile() -> None:
    def hook(model: Any, step: int) -> None:
        if step == 1:
            pelton.autotune(model, alternatives=["gradient_allreduce"])
        if step == 20:
            assert model.bagua_ddp.is_tuning
            next(model.parameters()).requires_grad_(False)
        if step == 30:
            model.bagua_ddp.load_algorithm_state_dict(model.bagua_ddp.algorithm_state_dict())

    model = _trained(hook, "bytegrad")
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def what_cannot_be_tried_says_why() -> None:
    model: Any = seeded(0, _make_net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model = pelton.wrap(model, optimizer)
    adam = QAdamAlgorithm(QAdamOptimizer(model.parameters(), warmup_steps=3))
    for alternative, why in (
        ("local_sgd", "not of gradients"),
        ("async", "not of gradients"),
        (adam, "several phases"),
    ):
        with raises(Unsupported, "autotune", "cannot be tried", why):
            pelton.autotune(model, alternatives=[alternative])
    with raises(InvalidArgument, "gradient_alreduce"):
        pelton.autotune(model, alternatives=["gradient_alreduce"])
    mine = ["bytegrad"] if bagua.get_rank() == 0 else ["gradient_allreduce"]
    with raises(InvalidArgument, "alternatives: differs from rank 0's"):
        pelton.autotune(model, alternatives=mine)
    assert not model.bagua_ddp.is_tuning
    run_backward(model, 0)
    optimizer.step()
    assert_same_on_all_ranks(list(model.parameters()))


@case(3, 4)
def schedules_between_hosts_are_measured_and_tried() -> None:
    if os.environ.get("PELTON_TEST_RANKS_PER_HOST") is None:
        raise NotRun("one host: no schedule is chosen there")
    with _lines() as lines:
        model = _trained(lambda model, step: pelton.autotune(model, schedules=True) if step == 1 else None)
    plain = _trained(lambda model, step: None)
    for mine, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert_same_on_all_ranks(list(model.parameters()))
    if bagua.get_rank() == 0:
        measured = [line for line in lines if "has measured schedules between hosts" in line]
        assert len(measured) == 1 and "ring: " in measured[0], lines
        assert any("with the schedules 'allreduce 0 0 " in line and "noise" in line for line in lines), lines


@case(2)
def on_one_host_there_are_no_schedules_to_choose_from() -> None:
    if os.environ.get("PELTON_TEST_RANKS_PER_HOST") is not None:
        raise NotRun("several hosts")
    with _lines() as lines:
        model = _trained(lambda model, step: pelton.autotune(model, schedules=True) if step == 0 else None)
    assert not any("schedules" in line for line in lines), lines
    assert not model.bagua_ddp.is_tuning, "the buckets were tuned at once"


@case(2)
def the_environment_tunes_schedules_at_level_two() -> None:
    os.environ["BAGUA_AUTOTUNE"] = "2"
    try:
        model = _trained(lambda model, step: None, steps=2)
        assert model.bagua_ddp.is_tuning
        averaging = _trained(lambda model, step: None, "local_sgd", steps=2)
        assert not averaging.bagua_ddp.is_tuning
    finally:
        del os.environ["BAGUA_AUTOTUNE"]
