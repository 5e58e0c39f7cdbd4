"""Training while algorithms that are equally right have turns, and schedules between hosts."""

from __future__ import annotations

import contextlib
import csv
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pelton
import pelton.torch_api as bagua
import torch
from pelton.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, PeltonError, Unsupported
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.algorithms.bytegrad import ByteGradAlgorithm, ByteGradAlgorithmImpl
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm, GradientAllReduceAlgorithmImpl
from pelton.torch_api.algorithms.q_adam import QAdamAlgorithm, QAdamOptimizer
from pelton.torch_api.checkpoint import load_checkpoint, save_checkpoint
from torch import nn

from cases.checks import assert_same_on_all_ranks, raises, run_backward, seeded
from cases.registry import NotRun, case
from cases.saving import shared_folder

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
        state = model.bagua_ddp._state().to_dict()  # of the one in force
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


def _top_k() -> Algorithm:
    return Algorithm.init("bytegrad", codec="top_k", hierarchical=False)


def _wrapped(algorithm: Algorithm | str) -> tuple[Any, torch.optim.Optimizer]:
    model: Any = seeded(0, _make_net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return pelton.wrap(model, optimizer, algorithm), optimizer


def _in_force(model: Any) -> str:
    assert model.bagua_algorithm is model.bagua_ddp.bagua_algorithm
    return type(model.bagua_algorithm).__name__


def _train(model: Any, optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
    for step in range(first, first + count):
        optimizer.zero_grad()
        run_backward(model, step)
        optimizer.step()


def _assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert {**one, "tensors": 0} == {**other, "tensors": 0}
    for mine, theirs in zip(one["tensors"], other["tensors"], strict=True):
        assert torch.equal(mine["values"], theirs["values"]), mine["key"]


def _continued(folder: Path, tunes_before: bool, tunes_after: bool) -> Any:
    """By the script that saved, of which only the place of its call of autotune varies."""
    model, optimizer = _wrapped(_top_k())
    if tunes_before:
        pelton.autotune(model, alternatives=["gradient_allreduce"])
    first = load_checkpoint(folder, model, optimizer)
    if tunes_after:
        pelton.autotune(model, alternatives=["gradient_allreduce"])
    assert model.bagua_ddp.is_tuning == (tunes_before or tunes_after)
    _train(model, optimizer, first, 4)  # within the first turn
    return model


@case(2)
def a_checkpoint_of_a_contest_goes_on_in_the_script_that_made_it() -> None:
    """Saved while its own algorithm has a turn (3 steps), and while the alternative has (9)."""
    for saved_at, in_force in ((3, "ByteGradAlgorithmImpl"), (9, "GradientAllReduceAlgorithmImpl")):
        with shared_folder() as folder:
            model, optimizer = _wrapped(_top_k())
            pelton.autotune(model, alternatives=["gradient_allreduce"])
            _train(model, optimizer, 0, saved_at)
            assert _in_force(model) == in_force
            state = model.bagua_ddp.algorithm_state_dict()
            assert (state["algorithm"], state["rounds"]) == ("bytegrad", min(saved_at, 7))
            assert any(entry["values"].any() for entry in state["tensors"]), "what error feedback holds back"
            save_checkpoint(saved_at, folder, model, optimizer)
            resumed, other = _wrapped(_top_k())
            assert load_checkpoint(folder, resumed, other) == saved_at
            _assert_same_state(resumed.bagua_ddp.algorithm_state_dict(), state)
            weights = [list(_continued(folder, *tunes).parameters()) for tunes in ((False, False), (True, False))]
            weights.append(list(_continued(folder, False, True).parameters()))
            for tensors in zip(*weights):
                assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
            assert_same_on_all_ranks(weights[0])


class _SlowBytesImpl(ByteGradAlgorithmImpl):
    """See _SlowImpl."""

    def step_is_complete(self) -> None:
        time.sleep(0.05)


class _SlowBytes(ByteGradAlgorithm):
    def reify(self, process_group: Any) -> Any:
        return _SlowBytesImpl(process_group, hierarchical=False, codec="top_k")


@case(2)
def a_checkpoint_loads_where_an_alternative_was_taken() -> None:
    with _lines() as lines, shared_folder() as folder:
        model, optimizer = _wrapped(_SlowBytes())
        pelton.autotune(model, alternatives=["gradient_allreduce"])
        _train(model, optimizer, 0, STEPS)
        assert _in_force(model) == "GradientAllReduceAlgorithmImpl"
        state = model.bagua_ddp.algorithm_state_dict()
        assert state["algorithm"] == "bytegrad"
        save_checkpoint(STEPS, folder, model, optimizer)
        resumed, other = _wrapped(_top_k())
        assert load_checkpoint(folder, resumed, other) == STEPS
        _assert_same_state(resumed.bagua_ddp.algorithm_state_dict(), state)
        load_checkpoint(folder, model, optimizer)
        assert _in_force(model) == "_SlowBytesImpl"
        for each, its_optimizer in ((model, optimizer), (resumed, other)):
            _train(each, its_optimizer, STEPS, 4)
    for mine, theirs in zip(model.parameters(), resumed.parameters()):
        assert torch.equal(mine, theirs)
    assert_same_on_all_ranks(list(model.parameters()))
    if bagua.get_rank() == 0:
        assert sum("is in force again, whose state was loaded" in line for line in lines) == 1, lines


@case(2)
def loading_an_earlier_state_begins_the_contest_anew() -> None:
    model, optimizer = _wrapped(_top_k())
    pelton.autotune(model, alternatives=["gradient_allreduce"])
    _train(model, optimizer, 0, 4)
    state = model.bagua_ddp.algorithm_state_dict()
    _train(model, optimizer, 4, 5)
    assert _in_force(model) == "GradientAllReduceAlgorithmImpl"
    model.bagua_ddp.load_algorithm_state_dict(state)
    assert _in_force(model) == "ByteGradAlgorithmImpl" and model.bagua_ddp.is_tuning
    _assert_same_state(model.bagua_ddp.algorithm_state_dict(), state)
    _train(model, optimizer, 9, 6)
    assert _in_force(model) == "ByteGradAlgorithmImpl", "its first turn takes 7 steps"
    _train(model, optimizer, 15, 1)
    assert _in_force(model) == "GradientAllReduceAlgorithmImpl"
    _train(model, optimizer, 16, STEPS)
    assert model.bagua_ddp._contest is None, "it has ended; the buckets may be tuned now"
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def what_was_kept_of_other_parameters_begins_anew() -> None:
    """A bias goes while the alternative has its turn."""
    model, optimizer = _wrapped(_top_k())
    pelton.autotune(model, alternatives=["gradient_allreduce"])
    _train(model, optimizer, 0, 8)
    model[4] = nn.Linear(64, 3, bias=False)
    _train(model, optimizer, 8, 2)
    state = model.bagua_ddp.algorithm_state_dict()
    assert (state["algorithm"], state["rounds"], state["tensors"]) == ("bytegrad", 0, [])
    model.bagua_ddp.load_algorithm_state_dict(state)
    _train(model, optimizer, 10, 20)
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def wrapping_again_goes_on_from_what_the_own_algorithm_remembered() -> None:
    model, optimizer = _wrapped(_top_k())
    pelton.autotune(model, alternatives=["gradient_allreduce"])
    _train(model, optimizer, 0, 9)
    assert _in_force(model) == "GradientAllReduceAlgorithmImpl"
    state = model.bagua_ddp.algorithm_state_dict()
    pelton.wrap(model, optimizer, _top_k())
    _assert_same_state(model.bagua_ddp.algorithm_state_dict(), state)
    _train(model, optimizer, 9, 4)
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def the_models_algorithm_is_the_one_in_force() -> None:
    seen: set[str] = set()

    def hook(model: Any, step: int) -> None:
        if step == 0:
            pelton.autotune(model, alternatives=["gradient_allreduce"])
        seen.add(_in_force(model))

    _trained(hook, "bytegrad", 14)
    assert seen == {"ByteGradAlgorithmImpl", "GradientAllReduceAlgorithmImpl"}, seen


@case(2)
def a_file_takes_what_alternatives_took() -> None:
    """Also under an algorithm whose buckets are not tuned."""
    with shared_folder() as folder:
        path = folder / "tuned.csv"
        model, optimizer = _wrapped(Algorithm.init("bytegrad", hierarchical=True))
        pelton.autotune(model, csv=path, alternatives=["gradient_allreduce"])
        assert not path.exists(), "nothing has been measured"
        _train(model, optimizer, 0, STEPS)
        bagua.barrier()
        with open(path) as file:
            rows = [row for row in csv.DictReader(file) if row["setup"]]
    expected = {("bytegrad", "True"), ("gradient_allreduce", "False")}
    assert {(row["setup"].partition("(")[0], row["is_hierarchical_reduce"]) for row in rows} == expected, rows
    assert all(float(row["score"]) > 0 and int(row["bucket_size_2p"]) > 10 for row in rows), rows
    steps = [int(row["train_iter"]) for row in rows]
    assert steps == sorted(steps) and steps[0] > 0 and steps[-1] <= STEPS, steps


@case(2)
def a_step_that_one_rank_skips_is_named() -> None:
    bagua.destroy_process_group()
    bagua.init_process_group(timeout=3)
    model, optimizer = _wrapped("gradient_allreduce")
    pelton.autotune(model, alternatives=["bytegrad"])
    rank = bagua.get_rank()
    own = ("autotune of model", "after 7 steps on this rank", "skips an optimizer.step() by itself")
    with raises(DeadlineExceeded, *own) if rank == 0 else raises(PeltonError, "rank 0"):
        for step in range(12):
            optimizer.zero_grad()
            run_backward(model, step)
            if rank == 0 or step != 3:
                optimizer.step()


@case(2)
def a_second_call_while_alternatives_are_tried_is_refused() -> None:
    def hook(model: Any, step: int) -> None:
        if step == 2:
            pelton.autotune(model, alternatives=["bytegrad"])
        if step == 12:
            for alternatives in ([], ["bytegrad"]):
                with raises(FailedPrecondition, "autotune tries alternatives now", "is_tuning is False"):
                    pelton.autotune(model, alternatives=alternatives)
            assert model.bagua_ddp.is_tuning, "the contest goes on"

    model = _trained(hook, steps=80)
    assert_same_on_all_ranks(list(model.parameters()))
    pelton.autotune(model, alternatives=["bytegrad"])  # the first contest is over


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
