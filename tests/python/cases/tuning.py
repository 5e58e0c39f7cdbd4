"""Training while the bucket size is tuned: the same weights, to the bit, and one plan on all ranks in the end."""

from __future__ import annotations

import contextlib
import csv
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pelton
import pelton.torch_api as bagua
import torch
from pelton.errors import InvalidArgument, Unsupported
from pelton.torch_api.algorithms.base import Algorithm
from torch import nn

from cases.checks import assert_same_on_all_ranks, raises, run_backward, seeded
from cases.registry import case

STEPS = 66  # one before the order is adopted, 58 of tuning, and some more
Hook = Callable[[Any, int], None]


def _make_net() -> nn.Module:
    """Of 14 tensors of up to 64 KiB, so that several sizes fill buckets in different ways."""
    layers: list[nn.Module] = [nn.Linear(6, 128)]
    for _ in range(5):
        layers += [nn.Tanh(), nn.Linear(128, 128)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(128, 3))


def _trained(hook: Hook, *, flat: bool = True, sets_to_none: bool = True, steps: int = STEPS) -> Any:
    model: Any = seeded(0, _make_net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model = model.with_bagua([optimizer], Algorithm.init("gradient_allreduce"), do_flatten=flat)
    for step in range(steps):
        hook(model, step)
        optimizer.zero_grad(set_to_none=sets_to_none)
        run_backward(model, step)
        optimizer.step()
    return model


def _nothing(model: Any, step: int) -> None:
    pass


def _assert_equal(one: Any, other: Any) -> None:
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters()):
        assert torch.equal(mine, theirs), name


def _tunes_from(first: int) -> Hook:
    def hook(model: Any, step: int) -> None:
        if step == first:
            pelton.autotune(model)

    return hook


@case(1, 2, 3)
def weights_are_those_without() -> None:
    plain = _trained(_nothing)
    assert plain.bagua_ddp.statistics()["plan_generation"] == 2
    for first in (0, 4):
        for sets_to_none in (True, False):
            tuned = _trained(_tunes_from(first), sets_to_none=sets_to_none)
            assert not tuned.bagua_ddp.is_tuning
            assert tuned.bagua_ddp.statistics()["plan_generation"] > 5, "several sizes had turns"
            _assert_equal(plain, tuned)
            assert_same_on_all_ranks(list(tuned.parameters()))
            sizes = [torch.tensor(tuned.bagua_ddp.statistics()["bucket_size_bytes"])]
            assert_same_on_all_ranks(sizes)


@case(2)
def tensors_that_are_segments_are_tuned_too() -> None:
    _assert_equal(_trained(_nothing, flat=False), _trained(_tunes_from(0), flat=False))
    with pelton.gradients_in_shared_memory():
        _assert_equal(_trained(_nothing), _trained(_tunes_from(0)))


@case(2)
def it_may_end_and_begin_anew() -> None:
    """In the middle of a turn; the model may be registered again meanwhile, and gradients that a user keeps stay."""
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def hook(model: Any, step: int) -> None:
        if step in (0, 20):
            pelton.autotune(model)
        if step == 9:
            model.bagua_ddp.load_algorithm_state_dict(model.bagua_ddp.algorithm_state_dict())
            assert model.bagua_ddp.is_tuning, "the new registration is tuned as well"
        if 5 < step < 50:
            gradient = next(model.parameters()).grad
            kept.append((gradient, gradient.clone()))

    tuned = _trained(hook, steps=STEPS + 20)
    plain = _trained(_nothing, steps=STEPS + 20)
    _assert_equal(plain, tuned)
    assert not tuned.bagua_ddp.is_tuning
    assert len(kept) == 44
    for gradient, copy in kept:
        assert torch.equal(gradient, copy)


@case(2)
def local_backwards_and_models_side_by_side() -> None:
    """Two models whose turns end at different rounds, and steps of two backward passes."""

    def train(tunes: bool) -> list[Any]:
        models: list[Any] = []
        for seed in (0, 1):
            model: Any = seeded(seed, _make_net)
            model.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            models.append(model.with_bagua([model.optimizer], Algorithm.init("gradient_allreduce")))
        for step in range(STEPS + 3):
            for number, model in enumerate(models):
                if tunes and step == 2 * number:
                    pelton.autotune(model)
                model.optimizer.zero_grad()
                with model.no_sync():
                    run_backward(model, step)
                run_backward(model, step + 1000)
                model.optimizer.step()
        return models

    for one, other in zip(train(False), train(True)):
        _assert_equal(one, other)


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


@case(2)
def the_environment_turns_it_on() -> None:
    lines: list[str] = []
    plain = _trained(_nothing)
    pelton.set_log_callback(lambda _, line: lines.append(line))
    try:
        with _environment(BAGUA_AUTOTUNE="1", BAGUA_IS_OUTPUT_AUTOTUNE_LOG="1"):
            tuned = _trained(_nothing)
            other: Any = seeded(0, _make_net)
            other = other.with_bagua([torch.optim.SGD(other.parameters(), lr=0.1)], Algorithm.init("bytegrad"))
            assert not other.bagua_ddp.is_tuning
    finally:
        pelton.set_log_callback(None)
    _assert_equal(plain, tuned)
    told = [line for line in lines if "autotune" in line]
    if bagua.get_rank() != 0:
        assert not told
        return
    (path,) = [line.split()[-1] for line in told if "autotune writes" in line][:1]
    assert any("rounds should take" in line for line in told), told
    assert any("(assumed, because the buckets' sizes hardly differ)" in line for line in told), "there is one bucket"
    assert any("a step with buckets of" in line and "noise" in line for line in told), told
    assert sum("has ended after" in line for line in told) == 1, told
    assert any("bytegrad" in line and "results would change with the buckets" in line for line in told), told
    with open(path) as file:
        rows = list(csv.DictReader(file))
    assert sorted(rows[0]) == ["bucket_size_2p", "is_hierarchical_reduce", "score", "setup", "train_iter"]
    assert len(rows) >= 3
    assert all(float(row["score"]) > 0 and 13 < int(row["bucket_size_2p"]) < 27 for row in rows)
    os.remove(path)


@case(2)
def what_cannot_be_tuned_says_why() -> None:
    plain = seeded(0, _make_net)
    with raises(InvalidArgument, "was not wrapped"):
        pelton.autotune(plain)
    for algorithm, why in (
        ("bytegrad", "results would change with the buckets"),
        ("decentralized", "rounds are not in backward passes"),
        ("local_sgd", "rounds are not in backward passes"),
    ):
        model: Any = seeded(0, _make_net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model = model.with_bagua([optimizer], Algorithm.init(algorithm))
        with raises(Unsupported, "cannot be tuned", why):
            pelton.autotune(model)
        run_backward(model, 0)
        optimizer.step()


@case(2)
def a_file_takes_what_was_measured() -> None:
    """On rank 0 alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tuned.csv")
        _trained(lambda model, step: pelton.autotune(model, csv=path) if step == 0 else None)
        assert os.path.exists(path) == (bagua.get_rank() == 0)


@case(2)
def a_file_that_cannot_be_written_is_an_error_on_all_ranks() -> None:
    """And changes nothing: whatever was tuned before goes on."""
    with tempfile.TemporaryDirectory() as folder:
        for algorithm, alternatives in (("gradient_allreduce", []), ("bytegrad", ["gradient_allreduce"])):
            model: Any = seeded(0, _make_net)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            model = model.with_bagua([optimizer], Algorithm.init(algorithm))
            for path, why in ((os.path.join(folder, "x", "tuned.csv"), "No such file"), (folder, "Is a directory")):
                mine = path if bagua.get_rank() == 0 else "tuned.csv"
                own = (path, "host of rank 0") if bagua.get_rank() == 0 else ("rank 0 of the group",)
                with raises(InvalidArgument, "csv: rank 0 cannot write to", why, *own):
                    pelton.autotune(model, csv=mine, alternatives=alternatives)
                assert not model.bagua_ddp.is_tuning
            assert not os.path.exists("tuned.csv")
            run_backward(model, 0)
            optimizer.step()


@case(2)
def a_file_stays_where_it_was_named() -> None:
    """Whichever folder the job is in when it has something to write."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:

        def hook(model: Any, step: int) -> None:
            if step == 0:
                os.chdir(folder)
                pelton.autotune(model, csv="tuned.csv")
                os.chdir(other)

        try:
            _trained(hook)
        finally:
            os.chdir(before)
        assert os.path.exists(os.path.join(folder, "tuned.csv")) == (bagua.get_rank() == 0)


@case(2)
def a_refused_call_leaves_nothing_behind() -> None:
    """A registration after it asks for no tuning."""
    model: Any = seeded(0, _make_net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model = model.with_bagua([optimizer], Algorithm.init("bytegrad"))
    with raises(Unsupported, "cannot be tuned"):
        pelton.autotune(model)
    model.bagua_ddp.load_algorithm_state_dict(model.bagua_ddp.algorithm_state_dict())
    run_backward(model, 0)
    optimizer.step()
