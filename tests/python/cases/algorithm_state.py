"""What algorithms remember: saved and loaded, taken along, and left behind when another one takes over."""

from __future__ import annotations

import contextlib
import copy
import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.errors import PeltonError
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.algorithms.bytegrad import ByteGradAlgorithm
from pelton.torch_api.algorithms.decentralized import DecentralizedAlgorithm, LowPrecisionDecentralizedAlgorithm
from pelton.torch_api.algorithms.diloco import DiLoCoAlgorithm
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from pelton.torch_api.algorithms.local_sgd import LocalSGDAlgorithm, PostLocalSGDAlgorithm
from pelton.torch_api.algorithms.one_bit_adam import OneBitAdamAlgorithm, OneBitAdamOptimizer
from pelton.torch_api.algorithms.power_sgd import PowerSGDAlgorithm
from pelton.torch_api.algorithms.q_adam import QAdamAlgorithm, QAdamOptimizer
from pelton.torch_api.algorithms.zero_one_adam import ZeroOneAdamAlgorithm, ZeroOneAdamOptimizer
from pelton.torch_api.checkpoint import load_checkpoint, save_checkpoint

from cases.checks import SHAPE, assert_same_on_all_ranks, batch, make_mlp, raises, rank_and_size, seeded
from cases.registry import case
from cases.worlds import World, assert_weights, sgd, train_step

MakeAlgorithm = Callable[[], Algorithm]


def _wrapped(algorithm: Algorithm, frozen: str = "") -> tuple[Any, Any]:
    model = seeded(rank_and_size()[0], make_mlp)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name != frozen)
    optimizer = sgd(model)
    return model.with_bagua([optimizer], algorithm), optimizer


def _through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def _check_resumed(make: MakeAlgorithm) -> None:
    """Training that goes on from a checkpoint goes on bit by bit as if it had not stopped."""
    model, optimizer = _wrapped(make())
    for step in range(5):
        train_step(model, optimizer, step)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    algorithm = _through_a_file(model.bagua_ddp.algorithm_state_dict())
    for step in range(5, 10):
        train_step(model, optimizer, step)
    resumed, other = _wrapped(make())
    train_step(resumed, other, 77)  # leaves something that must not stay
    resumed.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    resumed.bagua_ddp.load_algorithm_state_dict(algorithm)
    for step in range(5, 10):
        train_step(resumed, other, step)
    assert_weights(resumed, [p.detach() for p in model.parameters()])


@case(1, 2, 3)
def gradient_allreduce_goes_on() -> None:
    _check_resumed(GradientAllReduceAlgorithm)


@case(2, 3)
def error_feedback_goes_on() -> None:
    _check_resumed(lambda: ByteGradAlgorithm(hierarchical=False, codec="one_bit"))


@case(2)
def power_sgd_goes_on() -> None:
    _check_resumed(lambda: PowerSGDAlgorithm(rank=1, min_compression=1, start_round=1))


@case(2, 4)
def shift_one_goes_on_with_its_next_peer() -> None:
    _check_resumed(lambda: DecentralizedAlgorithm(False, peer_selection_mode="shift_one", communication_interval=2))


def _avoids_stragglers() -> Algorithm:
    return DecentralizedAlgorithm(hierarchical=False, peer_selection_mode="avoid_stragglers")


@case(2, 3)
def ranks_that_run_apart_go_on_each_with_its_own_counts() -> None:
    """By the dictionary, and by a checkpoint, which brings each rank's weights back, too."""
    rank, _ = rank_and_size()
    model, optimizer = _wrapped(_avoids_stragglers())
    for step in range(4 + 3 * rank):
        train_step(model, optimizer, step)
    state = _through_a_file(model.bagua_ddp.algorithm_state_dict())
    assert state["steps"] == 4 + 3 * rank, state
    folder = Path(sys.argv[1]) / f"apart {rank_and_size()[1]}"  # within the folder of the job
    save_checkpoint(1, str(folder), model, optimizer)
    weights = [p.detach().clone() for p in model.parameters()]
    model.bagua_ddp.load_algorithm_state_dict(state)
    for step in range(2 + rank):
        train_step(model, optimizer, step)
    assert model.bagua_ddp.algorithm_state_dict()["steps"] == 6 + 4 * rank
    resumed, other = _wrapped(_avoids_stragglers())
    assert load_checkpoint(str(folder), resumed, other) == 1
    found = resumed.bagua_ddp.algorithm_state_dict()
    assert (found["steps"], found["rounds"]) == (state["steps"], state["rounds"]), found
    assert_weights(resumed, weights)
    for step in range(3):
        train_step(resumed, other, step)


@case(2, 3)
def the_ring_goes_on_with_its_neighbours_weights() -> None:
    _check_resumed(lambda: LowPrecisionDecentralizedAlgorithm(hierarchical=False, communication_interval=3))


@case(2)
def diloco_goes_on_with_anchor_and_momentum() -> None:
    _check_resumed(lambda: DiLoCoAlgorithm(interval=3))


@case(2, 3)
def encoded_outer_steps_go_on_with_their_errors() -> None:
    compression: dict[str, Any] = {"hierarchical": False, "codec": "one_bit"}
    _check_resumed(lambda: DiLoCoAlgorithm(interval=3, **compression))
    _check_resumed(lambda: LocalSGDAlgorithm(interval=2, **compression))


@case(1, 2, 3)
def diloco_goes_on_with_a_round_that_was_open() -> None:
    """It begins at step 4 and is merged at step 7; the state is saved after step 5."""
    _check_resumed(lambda: DiLoCoAlgorithm(interval=8, fragments=2, delay=3))
    model, optimizer = _wrapped(DiLoCoAlgorithm(interval=8, fragments=2, delay=3))
    for step in range(4):
        train_step(model, optimizer, step)
        keys = {entry["key"] for entry in model.bagua_ddp.algorithm_state_dict()["tensors"]}
        assert ("result of the open round" in keys) == (step == 3), (step, keys)


@case(2)
def results_that_do_not_fit_are_an_error() -> None:
    model, optimizer = _wrapped(DiLoCoAlgorithm(interval=4, delay=3))
    for step in range(5):
        train_step(model, optimizer, step)
    state = model.bagua_ddp.algorithm_state_dict()
    result = next(entry for entry in state["tensors"] if entry["key"] == "result of the open round")
    count = result["values"].numel()
    result["values"] = result["values"][:-1]
    with raises(ValueError, "result", result["tensor"], str(count - 1), str(count)):
        model.bagua_ddp.load_algorithm_state_dict(state)


def _check_adam_resumed(make: Callable[[Any], tuple[torch.optim.Optimizer, Algorithm]]) -> None:
    """As _check_resumed, for algorithms that belong to an optimizer: before, at and after the end of its warm-up."""
    for stop in (2, 4, 7):
        model, optimizer = _wrapped_adam(make)
        for step in range(stop):
            train_step(model, optimizer, step)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        algorithm = _through_a_file(model.bagua_ddp.algorithm_state_dict())
        for step in range(stop, stop + 5):
            train_step(model, optimizer, step)
        resumed, other = _wrapped_adam(make)
        resumed.load_state_dict(saved[0])
        other.load_state_dict(saved[1])
        resumed.bagua_ddp.load_algorithm_state_dict(algorithm)
        for step in range(stop, stop + 5):
            train_step(resumed, other, step)
        assert_weights(resumed, [p.detach() for p in model.parameters()])


def _wrapped_adam(make: Callable[[Any], tuple[torch.optim.Optimizer, Algorithm]]) -> tuple[Any, Any]:
    model = seeded(rank_and_size()[0], make_mlp)
    optimizer, algorithm = make(model)
    return model.with_bagua([optimizer], algorithm), optimizer


def _qadam(model: Any, hierarchical: bool) -> tuple[torch.optim.Optimizer, Algorithm]:
    optimizer = QAdamOptimizer(model.parameters(), lr=0.05, warmup_steps=4)
    return optimizer, QAdamAlgorithm(optimizer, hierarchical=hierarchical)


@case(2)
def qadam_goes_on() -> None:
    _check_adam_resumed(lambda model: _qadam(model, hierarchical=True))
    _check_adam_resumed(lambda model: _qadam(model, hierarchical=False))


@case(2)
def one_bit_adam_goes_on_with_its_errors() -> None:
    def make(model: Any) -> tuple[torch.optim.Optimizer, Algorithm]:
        optimizer = OneBitAdamOptimizer(model.parameters(), lr=0.02, warmup_steps=4)
        return optimizer, OneBitAdamAlgorithm(optimizer, hierarchical=False)

    _check_adam_resumed(make)


@case(2)
def zero_one_adam_goes_on() -> None:
    def make(model: Any) -> tuple[torch.optim.Optimizer, Algorithm]:
        optimizer = ZeroOneAdamOptimizer(
            model.parameters(), lr=0.02, variance_updates=2, variance_freeze_step=4, doubling_steps=4, max_local_steps=4
        )
        return optimizer, ZeroOneAdamAlgorithm(optimizer, hierarchical=False)

    _check_adam_resumed(make)


@case(2)
def phases_go_on() -> None:
    _check_resumed(lambda: PostLocalSGDAlgorithm(warmup_steps=3, interval=3))


def _check_taken_along(make: MakeAlgorithm) -> None:
    """Wrapping again with the same algorithm in the middle changes nothing."""
    model, optimizer = _wrapped(make())
    other, other_optimizer = _wrapped(make())
    for step in range(8):
        if step == 4:
            other.with_bagua([other_optimizer], make())
        train_step(model, optimizer, step)
        train_step(other, other_optimizer, step)
    assert_weights(other, [p.detach() for p in model.parameters()])


@case(2, 3)
def wrapping_again_takes_error_feedback_along() -> None:
    _check_taken_along(lambda: ByteGradAlgorithm(hierarchical=False, codec="one_bit"))


@case(2)
def wrapping_again_takes_the_phase_along() -> None:
    """Weights come back to rank 0's, as whenever a model is wrapped; the schedule goes on."""
    model, optimizer = _wrapped(PostLocalSGDAlgorithm(warmup_steps=2, interval=4))
    for step in range(4):
        train_step(model, optimizer, step)
    model.with_bagua([optimizer], PostLocalSGDAlgorithm(warmup_steps=2, interval=4))
    state = model.bagua_ddp.algorithm_state_dict()
    assert (state["algorithm"], state["steps"], state["rounds"]) == ("local_sgd", 2, 0), state
    for step in range(4, 6):
        train_step(model, optimizer, step)
    assert model.bagua_ddp.statistics()["rounds"] == 1
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def other_options_begin_anew() -> None:
    model, optimizer = _wrapped(ByteGradAlgorithm(hierarchical=False, codec="one_bit"))
    train_step(model, optimizer, 0)
    model.with_bagua([optimizer], ByteGradAlgorithm(hierarchical=False, codec="one_bit", error_feedback=False))
    assert model.bagua_ddp.algorithm_state_dict()["rounds"] == 0
    assert model.bagua_ddp.algorithm_state_dict()["tensors"] == []


@case(1, 2, 3)
def algorithms_switch_in_the_middle_of_a_run() -> None:
    """Each begins where the last one left rank 0, and the next steps are those of a fresh world."""
    model = seeded(rank_and_size()[0], make_mlp)
    world = World()
    optimizer = sgd(model)
    rounds: list[tuple[Algorithm, Callable[[], None]]] = [
        (DecentralizedAlgorithm(hierarchical=False), lambda: None),
        (LowPrecisionDecentralizedAlgorithm(hierarchical=False), lambda: None),
        (ByteGradAlgorithm(hierarchical=False), lambda: assert_same_on_all_ranks(list(model.parameters()))),
        (DiLoCoAlgorithm(interval=2), lambda: assert_same_on_all_ranks(list(model.parameters()))),
        (GradientAllReduceAlgorithm(), lambda: assert_same_on_all_ranks(list(model.parameters()))),
    ]
    for algorithm, check in rounds:
        model.with_bagua([optimizer], algorithm)
        assert_same_on_all_ranks(list(model.parameters()))
        for step in range(2):
            train_step(model, optimizer, step)
        check()
    qadam = QAdamOptimizer(model.parameters(), warmup_steps=2)
    model.with_bagua([qadam], QAdamAlgorithm(qadam))
    for step in range(3):
        train_step(model, qadam, step)
    assert_same_on_all_ranks(list(model.parameters()))
    model.with_bagua([optimizer], DecentralizedAlgorithm(hierarchical=False))
    world.set_weights([[p.detach() for p in model.parameters()]] * world.size)
    moments = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    for rank, other in enumerate(world.optimizers):
        for parameter, moment in zip(world.models[rank].parameters(), moments):
            other.state[parameter]["momentum_buffer"] = moment.clone()
    for step in range(3):
        train_step(model, optimizer, step)
        world.backward(step)
        world.set_weights([world.means()] * world.size)
        world.step()
        assert_weights(model, world.mine())


@case(2)
def states_that_do_not_fit_are_refused_by_name() -> None:
    """On all ranks, whichever has the one that does not; the algorithm begins anew, and goes on."""
    rank, _ = rank_and_size()
    ring = LowPrecisionDecentralizedAlgorithm(hierarchical=False)
    for algorithm in (ring, ByteGradAlgorithm(hierarchical=False, codec="one_bit"), DiLoCoAlgorithm(interval=2)):
        model, optimizer = _wrapped(algorithm)
        for step in range(3):
            train_step(model, optimizer, step)
        state = model.bagua_ddp.algorithm_state_dict()
        first = state["tensors"][0]
        assert not any(character.isdigit() for character in first["key"]), first["key"]
        damaged: list[tuple[Any, str]] = [
            (state["tensors"][1:], "lacks it"),
            ([{**first, "values": first["values"][:1]}, *state["tensors"][1:]], "a part of it only"),
            ([{**first, "values": first["values"].double()}, *state["tensors"][1:]], "another dtype"),
            ([{**first, "key": "other exchange/left"}, *state["tensors"]], "keeps no such thing"),
        ]
        for tensors, text in damaged:
            named = [first["tensor"], text] if rank == 1 else ["rank 1 of the group", text]
            mine = {**state, "tensors": tensors} if rank == 1 else state
            with raises(ValueError, *named):
                model.bagua_ddp.load_algorithm_state_dict(mine)
            train_step(model, optimizer, 3)
        model.bagua_ddp.load_algorithm_state_dict(state)
        train_step(model, optimizer, 4)


@case(2)
def foreign_states_are_refused_on_all_ranks() -> None:
    rank, _ = rank_and_size()
    model, optimizer = _wrapped(ByteGradAlgorithm(hierarchical=False, codec="one_bit"))
    train_step(model, optimizer, 0)
    state = model.bagua_ddp.algorithm_state_dict()
    inner = model.bagua_ddp
    with raises(ValueError, "algorithm_state_dict()"):
        inner.load_algorithm_state_dict({"format": 3})
    with raises(ValueError, "its format is 1; this version reads 3 and 4"):
        inner.load_algorithm_state_dict({"format": 1})
    with raises(ValueError, "this is rank" if rank == 1 else "rank 1"):
        inner.load_algorithm_state_dict({**state, "rank": 0})
    with raises(ValueError, "gradient_allreduce"):
        inner.load_algorithm_state_dict({**state, "algorithm": "gradient_allreduce"})
    with raises(ValueError, "rank 0's" if rank == 1 else "rank 1"):
        inner.load_algorithm_state_dict({**state, "steps": rank})
    train_step(model, optimizer, 1)
    assert_same_on_all_ranks(list(model.parameters()))


def _train(model: Any, optimizer: torch.optim.Optimizer, steps: range, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
    for step in steps:
        train_step(model, optimizer, step)


def _evaluate(model: Any, weights: dict[str, torch.Tensor]) -> None:
    model.load_state_dict(weights)
    with torch.no_grad():
        model(batch(0, 0, *SHAPE))


_REMEMBERING: tuple[MakeAlgorithm, ...] = (
    lambda: DiLoCoAlgorithm(interval=2),
    lambda: LocalSGDAlgorithm(interval=2, hierarchical=False, codec="block_int4"),
    lambda: LowPrecisionDecentralizedAlgorithm(hierarchical=False),
)


@case(2)
def weights_that_are_loaded_are_gone_on_from() -> None:
    """They are not drawn to an anchor, or a neighbour's replica, of the weights before."""
    for make in _REMEMBERING:
        model, optimizer = _wrapped(make())
        _train(model, optimizer, range(4), lr=0.1)
        model.load_state_dict({name: torch.full_like(value, 7.0) for name, value in model.state_dict().items()})
        _train(model, optimizer, range(1), lr=0.0)
        wanted = {name: torch.full_like(value, 3.0) for name, value in model.state_dict().items()}
        model.load_state_dict(wanted)
        _train(model, optimizer, range(4), lr=0.0)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, wanted[name], msg=f"{make()}, {name}: {value} is not {wanted[name]}")
        model.bagua_ddp.detach()


@case(2)
def weights_that_come_back_leave_the_algorithm_as_it_was() -> None:
    """As where averaged weights are evaluated between two steps; ranks may be apart then."""
    for make in _REMEMBERING:
        results = []
        for swaps in (False, True):
            model, optimizer = _wrapped(make())
            for step in range(5):
                if swaps:
                    own = copy.deepcopy(model.state_dict())
                    model.load_state_dict({name: value * 0 for name, value in own.items()})
                    model.load_state_dict(own)
                train_step(model, optimizer, step)
            results.append([p.detach().clone() for p in model.parameters()])
            model.bagua_ddp.detach()
        for mine, wanted in zip(*results):
            assert torch.equal(mine, wanted), make()


@case(2)
def weights_that_come_back_on_one_rank_alone_hold_up_nobody() -> None:
    """Also where they never went, as averages that are still equal to them, and where parts of the model use them."""
    bagua.destroy_process_group()
    bagua.init_process_group(timeout=10)
    model, optimizer = _wrapped(DiLoCoAlgorithm(interval=2))
    own = copy.deepcopy(model.state_dict())
    others = {name: value * 0 for name, value in own.items()}
    for step, loads in enumerate([(own, own), (others, own), (others, own, own, own), (own, own, others, own)]):
        for weights in loads if rank_and_size()[0] == 0 else ():
            _evaluate(model, weights)
        if rank_and_size()[0] == 0:
            model.load_state_dict(others)
            model[0](batch(0, 0, *SHAPE))
            model.load_state_dict(own)
        _train(model, optimizer, range(step, step + 1), lr=0.0)  # which leaves the weights as they are
    bagua.destroy_process_group()
    bagua.init_process_group()


@case(2)
def a_rank_that_holds_the_weights_that_all_load_takes_part() -> None:
    """Whatever it evaluates alone before, after or in between, and however often they are loaded."""
    for order in ("load load", "other own load", "own own load", "load other own", "load train load"):
        model, optimizer = _wrapped(DiLoCoAlgorithm(interval=2))
        _train(model, optimizer, range(3), lr=0.1)
        own = copy.deepcopy(model.state_dict())
        wanted = bagua.broadcast_object(own, 0)
        other = {name: value * 0 for name, value in wanted.items()}
        for word in order.split():
            if word == "train":
                _train(model, optimizer, range(1), lr=0.0)
            elif word == "load":
                model.load_state_dict(wanted)
            elif rank_and_size()[0] == 0:
                _evaluate(model, own if word == "own" else other)
        _train(model, optimizer, range(4), lr=0.0)
        for name, value in model.state_dict().items():
            assert torch.equal(value, wanted[name]), f"{order}: {name} is {value}"
        model.bagua_ddp.detach()


@case(2)
def a_part_that_thaws_after_an_evaluation_on_one_rank_holds_up_nobody() -> None:
    model, optimizer = _wrapped(DiLoCoAlgorithm(interval=2), frozen="0.weight")
    _train(model, optimizer, range(2), lr=0.1)
    own = copy.deepcopy(model.state_dict())
    for weights in ({name: value * 0 for name, value in own.items()}, own):
        if rank_and_size()[0] == 0:
            _evaluate(model, weights)
    model.requires_grad_(True)
    _train(model, optimizer, range(2), lr=0.1)
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def ranks_that_load_different_weights_come_to_their_mean() -> None:
    model, optimizer = _wrapped(DiLoCoAlgorithm(interval=2))
    _train(model, optimizer, range(3), lr=0.1)
    model.load_state_dict({n: torch.full_like(v, float(rank_and_size()[0])) for n, v in model.state_dict().items()})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _train(model, optimizer, range(2), lr=0.0)
    assert any("have loaded different weights" in str(warning.message) for warning in told), told
    assert_weights(model, [torch.full_like(p, 0.5) for p in model.parameters()])


@case(2)
def ranks_that_load_the_weights_of_one_of_them_go_on_from_those() -> None:
    """Nothing changes on that rank, which takes part in the new beginning all the same."""
    for make in _REMEMBERING:
        model, optimizer = _wrapped(make())
        _train(model, optimizer, range(3), lr=0.1)
        if rank_and_size()[0] == 0:  # which looks at other weights before, alone
            own = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict({name: value * 0 for name, value in own.items()})
            model.load_state_dict(own)
        wanted = bagua.broadcast_object(model.state_dict(), 0)
        model.load_state_dict(wanted)
        _train(model, optimizer, range(4), lr=0.0)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, wanted[name], msg=f"{make()}, {name}: {value} is not {wanted[name]}")
        model.bagua_ddp.detach()


@case(2)
def weights_that_one_rank_alone_loads() -> None:
    """The ranks cannot go on, and the error of the one that has loaded says why."""
    bagua.destroy_process_group()
    bagua.init_process_group(timeout=2)
    try:
        model, optimizer = _wrapped(DiLoCoAlgorithm(interval=2))
        if rank_and_size()[0] == 0:
            model.load_state_dict({name: value * 0 for name, value in model.state_dict().items()})
            with raises(PeltonError, "load_state_dict was called on this rank", "on all ranks"):
                _train(model, optimizer, range(2), lr=0.1)
        else:
            with raises(PeltonError):
                _train(model, optimizer, range(2), lr=0.1)
    finally:
        with contextlib.suppress(PeltonError):
            bagua.destroy_process_group()
        bagua.init_process_group()
