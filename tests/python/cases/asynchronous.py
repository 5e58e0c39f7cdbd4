"""Averaging beside training: it brings ranks together, stops by agreement, and never hangs."""

from __future__ import annotations

import gc
import time
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton._training import _session
from pelton.torch_api.algorithms import Algorithm
from pelton.torch_api.algorithms.async_model_average import AsyncModelAverageAlgorithm

from cases.checks import (
    SHAPE,
    assert_same_on_all_ranks,
    batch,
    local_gradients,
    make_mlp,
    mean_of,
    raises,
    rank_and_size,
    seeded,
)
from cases.registry import case
from cases.worlds import assert_weights, run, sgd, train_step


def _wrapped(**options: Any) -> tuple[Any, Any]:
    model = seeded(rank_and_size()[0], make_mlp)
    optimizer = sgd(model)
    return model.with_bagua([optimizer], AsyncModelAverageAlgorithm(**options)), optimizer


def _distance(model: Any) -> float:
    """How far this rank is from the mean of all, at most."""
    own = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    mean = torch.zeros_like(own)
    bagua.allreduce(own, mean, bagua.ReduceOp.AVG)
    return float((own - mean).abs().max())


def _train_until(model: Any, optimizer: Any, rounds: int, limit_s: float = 20) -> None:
    """Until this rank has seen so many averages."""
    end = time.monotonic() + limit_s
    step = 0
    while model.bagua_ddp.statistics()["rounds"] < rounds:
        assert time.monotonic() < end, f"{model.bagua_ddp.statistics()['rounds']} rounds in {limit_s} s"
        train_step(model, optimizer, step)
        step += 1


@case(1, 2, 3, 4)
def ranks_are_one_when_all_have_stopped() -> None:
    model, optimizer = _wrapped(sync_interval_ms=0)
    _train_until(model, optimizer, 5)
    model.bagua_algorithm.abort(model)
    model.bagua_algorithm.abort(model.bagua_ddp)
    assert _distance(model) < 1e-5, _distance(model)


def _steps(model: Any, optimizer: torch.optim.Optimizer, count: int) -> None:
    """With gradients of this rank's number plus one, whatever the weights."""
    rank, _ = rank_and_size()
    for _ in range(count):
        optimizer.zero_grad()
        output = model(batch(rank, 0, *SHAPE)).sum() * 0
        (output + sum((rank + 1) * p.sum() for p in model.parameters())).backward()
        optimizer.step()


def _come_together(model: Any, optimizer: torch.optim.Optimizer, to: float, after_the_stop: float) -> None:
    """Trains with a learning rate of 0 until all ranks are so near to each other, then stops the averaging."""
    for group in optimizer.param_groups:
        group["lr"] = 0
    end = time.monotonic() + 20
    farthest = torch.ones(1)
    while float(farthest) > to:
        assert time.monotonic() < end, f"{float(farthest)} apart"
        _steps(model, optimizer, 10)
        bagua.allreduce(torch.tensor([_distance(model)]), farthest, bagua.ReduceOp.MAX)
    model.bagua_ddp.stop_averaging()
    assert _distance(model) < after_the_stop


@case(2, 3)
def a_model_may_be_dropped_by_the_ranks_at_different_times() -> None:
    """It goes on for the others, and ends when the last one drops it; then another model may have its parameters."""
    rank, _ = rank_and_size()
    for name in ("async_model_average", "asynchronous_pairs", "asynchronous_push_sum"):
        model: Any = seeded(rank, make_mlp)
        optimizer = sgd(model)
        layers = list(model)
        model.with_bagua([optimizer], Algorithm.init(name, sync_interval_ms=0))
        _train_until(model, optimizer, 3)
        if rank == 0:
            _train_until(model, optimizer, int(model.bagua_ddp.statistics()["rounds"]) + 5)
        else:
            model = None
            gc.collect()
        bagua.barrier()
        model = None
        gc.collect()
        heir: Any = torch.nn.Sequential(*layers)
        heir.with_bagua([optimizer], "gradient_allreduce")
        for step in range(3):
            train_step(heir, optimizer, step)
        assert_same_on_all_ranks(list(heir.parameters()))


@case(2)
def a_model_that_one_rank_has_dropped_ends_with_the_job() -> None:
    model, optimizer = _wrapped(sync_interval_ms=0)
    _train_until(model, optimizer, 3)
    if rank_and_size()[0] == 1:
        model = None
        gc.collect()
    bagua.barrier()
    start = time.monotonic()
    bagua.destroy_process_group()
    assert time.monotonic() - start < 8, "ranks waited for each other"
    bagua.init_process_group(torch_distributed=False)


@case(4)
def pairs_come_together_and_keep_the_mean() -> None:
    """Of weights whose gradients do not depend on them, so that the mean is known however the ranks average."""
    _, size = rank_and_size()
    model: Any = seeded(0, make_mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])
    model = model.with_bagua([optimizer], Algorithm.init("asynchronous_pairs", sync_interval_ms=0))

    _steps(model, optimizer, 20)
    _come_together(model, optimizer, to=1e-3, after_the_stop=1e-2)
    own = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    mean = torch.zeros_like(own)
    bagua.allreduce(own, mean, bagua.ReduceOp.AVG)
    learnt = 0.01 * 20 * (size + 1) / 2
    assert torch.allclose(mean, start - learnt, atol=1e-4), (mean - start + learnt).abs().max()


@case(4)
def shares_come_together_and_every_ranks_steps_count_alike() -> None:
    """Over a star, whose centre has more of the shares. Weights that are loaded after a stop are taken as they are."""
    rank, size = rank_and_size()
    model: Any = seeded(rank, make_mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    algorithm = Algorithm.init("asynchronous_push_sum", sync_interval_ms=0, graph="star")
    model = model.with_bagua([optimizer], algorithm)
    start = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])

    def weights() -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    _steps(model, optimizer, 20)
    _come_together(model, optimizer, to=1e-4, after_the_stop=1e-3)
    mean = torch.zeros_like(start)
    bagua.allreduce(start, mean, bagua.ReduceOp.AVG)
    learnt = 0.01 * 20 * (size + 1) / 2
    assert torch.allclose(weights(), mean - learnt, atol=1e-3), (weights() - mean + learnt).abs().max()
    model.load_state_dict(seeded(7, make_mlp).state_dict())
    loaded = weights().clone()
    model.bagua_ddp.resume_averaging()
    seen = model.bagua_ddp.statistics()["rounds"]
    while model.bagua_ddp.statistics()["rounds"] < seen + 20:
        _steps(model, optimizer, 1)
    _come_together(model, optimizer, to=1e-4, after_the_stop=1e-3)
    assert torch.allclose(weights(), loaded, atol=1e-5), (weights() - loaded).abs().max()


@case(2, 3)
def it_goes_on_after_a_stop() -> None:
    model, optimizer = _wrapped(sync_interval_ms=1)
    _train_until(model, optimizer, 2)
    model.bagua_algorithm.abort(model)
    seen = model.bagua_ddp.statistics()["rounds"]
    for step in range(3):
        train_step(model, optimizer, step)
    assert model.bagua_ddp.statistics()["rounds"] == seen
    apart = _distance(model)
    assert apart > 1e-4, apart
    model.bagua_algorithm.resume(model)
    model.bagua_algorithm.resume(model)
    _train_until(model, optimizer, int(seen) + 3)
    model.bagua_algorithm.abort(model)
    assert _distance(model) < 1e-5


@case(2)
def ranks_may_take_unequally_many_steps() -> None:
    rank, _ = rank_and_size()
    model, optimizer = _wrapped(sync_interval_ms=1)
    for step in range(5 + 20 * rank):
        train_step(model, optimizer, step)
    model.bagua_algorithm.abort(model)
    assert _distance(model) < 1e-5


@case(2, 3)
def the_warm_up_is_gradient_allreduce() -> None:
    _, size = rank_and_size()
    model, optimizer = _wrapped(sync_interval_ms=1, warmup_steps=3)
    model.bagua_algorithm.abort(model)  # does nothing yet
    reference = seeded(0, make_mlp)
    other = sgd(reference)
    for step in range(3):
        means = mean_of([local_gradients(reference, batch(r, step, *SHAPE)) for r in range(size)])
        for name, parameter in reference.named_parameters():
            parameter.grad = means[name]
        other.step()
        train_step(model, optimizer, step)
        assert_weights(model, [p.detach() for p in reference.parameters()])
    _train_until(model, optimizer, 2)
    model.bagua_algorithm.abort(model)
    assert _distance(model) < 1e-5


@case(2)
def training_that_ends_without_a_stop_ends_soon() -> None:
    model, optimizer = _wrapped(sync_interval_ms=1)
    _train_until(model, optimizer, 2)
    begin = time.monotonic()
    bagua.destroy_process_group()
    assert time.monotonic() - begin < 8
    with raises(RuntimeError, "not synchronised any more"):
        train_step(model, optimizer, 0)


@case(2)
def the_end_of_the_job_stops_the_models_in_one_order_on_all_ranks() -> None:
    """Else each rank would wait for the stop of another model, until the time for that is over."""
    count = 6
    models = [_wrapped()[0] for _ in range(count)]
    known = [inner.module for inner in _session.current().models()]
    assert all(known[i - count] is model for i, model in enumerate(models))
    began = time.monotonic()
    bagua.destroy_process_group()
    taken_s = time.monotonic() - began
    bagua.init_process_group()
    assert taken_s < 9, taken_s


@case(2)
def another_algorithm_may_follow() -> None:
    model, optimizer = _wrapped(sync_interval_ms=1)
    _train_until(model, optimizer, 2)
    model.with_bagua([optimizer], bagua.algorithms.Algorithm.init("gradient_allreduce"))
    train_step(model, optimizer, 0)
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def gradients_are_of_the_weights_that_the_step_changes() -> None:
    """Averages are never added between a forward pass and the step: three slow passes, and nothing has changed."""
    rank, _ = rank_and_size()
    model, optimizer = _wrapped(sync_interval_ms=0)
    train_step(model, optimizer, 0)
    optimizer.zero_grad()
    with model.no_sync():
        run(model, rank, 1)
        before = [p.detach().clone() for p in model.parameters()]
        time.sleep(0.2)
        run(model, rank, 2)
    time.sleep(0.2)
    assert_weights(model, before)
    optimizer.step()
    model.bagua_algorithm.abort(model)
    assert _distance(model) < 1e-5


@case(2)
def arguments_are_checked() -> None:
    with raises(ValueError, "peer_selection_mode"):
        AsyncModelAverageAlgorithm(peer_selection_mode="shift_one")
    with raises(ValueError, "sync_interval_ms"):
        AsyncModelAverageAlgorithm(sync_interval_ms=-1)
    with raises(ValueError, "bagua_ddp"):
        _wrapped()[0].bagua_algorithm.abort(make_mlp())
