"""What a rank accumulates by itself (`no_sync`, a smaller group) is communicated, whatever the model becomes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.errors import FailedPrecondition, InvalidArgument
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from pelton.torch_api.algorithms.local_sgd import LocalSGDAlgorithm
from torch import nn

from cases.checks import (
    SHAPE,
    assert_same,
    batch,
    gradients,
    local_gradients,
    make_mlp,
    mean_of,
    raises,
    rank_and_size,
    run_backward,
    seeded,
    wrap,
)
from cases.registry import case
from cases.user_algorithms import Centralized, Written
from cases.wrapping import Branches

_Change = Callable[[Any], Any]  # of a model


@case(2, 3)
def no_sync_communicates_the_sum_at_the_end() -> None:
    rank, size = rank_and_size()
    model, reference = wrap(seeded(0, make_mlp)), seeded(0, make_mlp)
    for start in (0, 3):
        model.zero_grad()
        with model.no_sync():
            assert not model.bagua_ddp.require_backward_grad_sync
            run_backward(model, start)
            run_backward(model, start + 1)
            local = gradients(model)
        assert model.bagua_ddp.require_backward_grad_sync
        run_backward(model, start + 2)
        per_rank = []
        for r in range(size):
            parts = [local_gradients(reference, batch(r, start + i, *SHAPE)) for i in range(3)]
            per_rank.append({n: parts[0][n] + parts[1][n] + parts[2][n] for n in parts[0]})
        assert_same(local, {n: _sum_of_two(reference, rank, start)[n] for n in local})
        assert_same(gradients(model), mean_of(per_rank))


def _sum_of_two(reference: Any, rank: int, start: int) -> dict[str, Any]:
    parts = [local_gradients(reference, batch(rank, start + i, *SHAPE)) for i in range(2)]
    return {n: parts[0][n] + parts[1][n] for n in parts[0]}


@case(2)
def no_sync_remembers_what_the_last_backward_does_not_use() -> None:
    _rank, size = rank_and_size()
    model, reference = wrap(seeded(0, Branches)), seeded(0, Branches)
    with model.no_sync():
        run_backward(model, 0)
    model.used = (0,)
    run_backward(model, 1)
    per_rank = []
    for r in range(size):
        reference.used = (0, 1, 2)
        first = local_gradients(reference, batch(r, 0, *SHAPE))
        reference.used = (0,)
        second = local_gradients(reference, batch(r, 1, *SHAPE))
        per_rank.append({n: first[n] if second[n] is None else first[n] + second[n] for n in first})
    assert_same(gradients(model), mean_of(per_rank))


def _check_communicated(
    wraps: Sequence[Callable[[Any], Any]], change: Callable[[Any], Any], average: bool = True
) -> None:
    """A local pass of the model, wrapped by the first of `wraps`; a change; wrapped by the others, a pass that does not
    use what the former used.
    """
    _rank, size = rank_and_size()
    model, reference = seeded(0, Branches), seeded(0, Branches)
    model.branches[2].requires_grad_(False)
    wraps[0](model)
    model.used = reference.used = (0,)
    with model.no_sync():
        run_backward(model, 0)
    first = [local_gradients(reference, batch(r, 0, *SHAPE)) for r in range(size)]
    change(model)
    for wrap_again in wraps[1:]:
        wrap_again(model)
    model.used = reference.used = (1,)
    run_backward(model, 1)
    second = [local_gradients(reference, batch(r, 1, *SHAPE)) for r in range(size)]
    both = [{n: b[n] if a[n] is None else a[n] for n in list(a)[:4]} for a, b in zip(first, second)]
    assert_same({name: gradients(model)[name] for name in both[0]}, mean_of(both, average))


def _thaw(model: Any) -> None:
    model.branches[2].requires_grad_(True)


def _freeze(model: Any) -> None:
    model.branches[0].requires_grad_(False)


def _replace(model: Any) -> None:
    _thaw(model)
    _freeze(model)


def _freeze_and_fail(model: Any) -> None:
    _freeze(model)
    with raises(InvalidArgument, "no optimizer steps"):
        model.with_bagua([], LocalSGDAlgorithm())


def _unwrap(model: Any) -> None:
    model.bagua_ddp.detach()


def _unwrap_and_freeze(model: Any) -> None:
    _unwrap(model)
    _freeze(model)


@case(3)
def what_no_sync_has_accumulated_is_communicated_once_the_model_has_changed() -> None:
    """By a pass that uses another part of the model, on a model that is registered anew; sums become sums."""
    for average in (True, False):

        def wraps(model: Any, average: bool = average) -> None:
            wrap(model, average=average)

        for change in (_freeze, _thaw, _replace):
            _check_communicated([wraps], change, average)
        for change in (_freeze, _thaw, _replace, _freeze_and_fail, _unwrap, _unwrap_and_freeze):
            _check_communicated([wraps, wraps], change, average)


@case(3)
def gradients_of_before_the_wrapping_are_communicated_though_frozen_by_then() -> None:
    """An optimizer steps by them, also of what is frozen."""
    _rank, size = rank_and_size()
    model, reference = seeded(0, Branches), seeded(0, Branches)
    model.used = reference.used = (0,)
    run_backward(model, 0)
    _freeze(model)
    wrap(model)
    first = [local_gradients(reference, batch(r, 0, *SHAPE)) for r in range(size)]
    model.used = (1,)
    run_backward(model, 1)
    of_frozen = [{name: made[name] for name in made if name.startswith("branches.0.")} for made in first]
    assert of_frozen[0]
    assert_same({name: gradients(model)[name] for name in of_frozen[0]}, mean_of(of_frozen))


@case(2)
def a_frozen_part_that_was_trained_before_may_be_wrapped_by_itself_later() -> None:
    """Its gradients are of no pass of the whole, none of whose optimizers steps it."""
    generator, judge = nn.Linear(6, 6), seeded(0, lambda: nn.Linear(6, 3))
    reference = seeded(0, lambda: nn.Linear(6, 3))
    whole = nn.Sequential(generator, judge)
    run_backward(judge, 0)
    judge.requires_grad_(False)
    wrap(whole, [torch.optim.SGD(generator.parameters(), lr=0.1)])
    run_backward(whole, 1)
    judge.requires_grad_(True)
    wrap(judge, [torch.optim.SGD(judge.parameters(), lr=0.1)])
    judge.zero_grad()
    run_backward(judge, 2)
    per_rank = [local_gradients(reference, batch(r, 2, *SHAPE)) for r in range(rank_and_size()[1])]
    assert_same(gradients(judge), mean_of(per_rank))


class _Resetting(Centralized):
    """Begins another phase when the test says so."""

    is_due = False

    def need_reset(self) -> bool:
        is_due, self.is_due = self.is_due, False
        return is_due


@case(3)
def what_no_sync_has_accumulated_outlives_a_change_of_the_algorithm() -> None:
    """Also where one is written in Python, or communicates weights: then each rank's gradients are its own."""

    def python(model: Any) -> None:
        model.with_bagua([], Written(_Resetting))

    def weights(model: Any) -> None:
        model.with_bagua([torch.optim.SGD(model.parameters(), lr=0.1)], LocalSGDAlgorithm())

    def reset(model: Any) -> None:
        model.bagua_algorithm.is_due = True

    for change in (_freeze, _thaw, _replace, reset):
        _check_communicated([python], change)
    for change in (_freeze, _replace, _freeze_and_fail):
        for wraps in ([python, python], [python, wrap], [wrap, python], [weights, wrap], [wrap, weights, wrap]):
            _check_communicated(wraps, change)


@case(3)
def gradients_that_a_smaller_group_has_made_alike_are_communicated_in_a_larger_one() -> None:
    rank, size = rank_and_size()
    groups = [bagua.communication.new_group([r]) for r in range(size)]
    model, reference = seeded(0, Branches), seeded(0, Branches)
    model.with_bagua([], GradientAllReduceAlgorithm(), process_group=groups[rank])
    model.used = (0,)
    run_backward(model, 0)
    _freeze(model)
    wrap(model)
    model.used = (1,)
    run_backward(model, 1)
    reference.used = (0,)
    per_rank = [local_gradients(reference, batch(r, 0, *SHAPE)) for r in range(size)]
    assert_same(dict(list(gradients(model).items())[:2]), dict(list(mean_of(per_rank).items())[:2]))


@case(2)
def a_sum_that_is_there_is_not_added_up_again_once_the_model_has_changed() -> None:
    model = seeded(0, Branches)
    model.branches[2].requires_grad_(False)
    wrap(model, average=False)
    run_backward(model, 0)
    model.branches[2].requires_grad_(True)
    with raises(FailedPrecondition, "summed", "zero_grad(set_to_none=True)"):
        run_backward(model, 1)


@case(3)
def a_sum_to_which_no_sync_has_added_is_not_summed_again_once_it_is_frozen() -> None:
    model = _with_a_sum_to_which_two_ranks_have_added()
    model.branches[0].requires_grad_(False)
    with raises(FailedPrecondition, "'branches.0.", "summed", "zero_grad(set_to_none=True)"):
        run_backward(model, 2)


@case(3)
def a_sum_to_which_no_sync_has_added_is_not_summed_again_once_the_model_has_others() -> None:
    rank, _ = rank_and_size()
    model = _with_a_sum_to_which_two_ranks_have_added()
    left = model.branches[0]  # held, as by an optimizer
    model.branches[0] = nn.Linear(6, 3)
    kind, named = (ValueError, "rank 0 of the group") if rank == 2 else (FailedPrecondition, "'branches.0.weight'")
    with raises(kind, named, "summed", "zero_grad(set_to_none=True)"):
        run_backward(model, 2)
    assert left.weight.grad is not None


def _with_a_sum_to_which_two_ranks_have_added() -> Any:
    rank, _ = rank_and_size()
    model = seeded(0, Branches)
    model.branches[2].requires_grad_(False)
    wrap(model, average=False)
    run_backward(model, 0)
    if rank != 2:
        with model.no_sync():
            model.used = (0,)
            run_backward(model, 1)
    model.branches[2].requires_grad_(True)
    model.used = (2,)
    return model


@case(2)
def a_step_of_gradients_from_no_sync_alone_is_told_of_once() -> None:
    model: Any = seeded(0, make_mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = model.with_bagua([optimizer], GradientAllReduceAlgorithm())

    def warned(*passes: bool, steps_locally: bool = False) -> list[warnings.WarningMessage]:
        for is_local in passes:
            with model.no_sync() if is_local else contextlib.nullcontext():
                run_backward(model, 0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with model.no_sync() if steps_locally else contextlib.nullcontext():
                optimizer.step()
        return [warning for warning in caught if "inside no_sync()" in str(warning.message)]

    assert not warned(True, False) and not warned(False) and not warned(True, steps_locally=True)
    (warning,) = warned(True, True)
    assert "SGD.step()" in str(warning.message) and "Let the last pass" in str(warning.message)
    assert warning.filename == __file__, warning.filename
    assert not warned(True), "told of once"
