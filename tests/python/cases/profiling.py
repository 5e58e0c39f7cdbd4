"""`torch.profiler` shows the rounds of a wrapped model, bucket by bucket."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.algorithms.bytegrad import ByteGradAlgorithm
from pelton.torch_api.algorithms.decentralized import DecentralizedAlgorithm
from pelton.torch_api.algorithms.diloco import DiLoCoAlgorithm
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from pelton.torch_api.algorithms.local_sgd import LocalSGDAlgorithm

from cases.checks import rank_and_size, seeded
from cases.registry import case
from cases.user_algorithms import Both, Centralized, InPython, Written

_SHOWN = re.compile(r"pelton:bucket (\d+) \((.*)\), (\d+) tensors, (\d+) bytes, (waits|runs)")
_STEPS = 3
BUILT_IN: tuple[Callable[[], Algorithm], ...] = (
    GradientAllReduceAlgorithm,
    lambda: ByteGradAlgorithm(hierarchical=False),
    lambda: DecentralizedAlgorithm(hierarchical=False),
    lambda: LocalSGDAlgorithm(interval=1),
)


@dataclass(frozen=True)
class _Range:
    """Threads: a value. Owns: its texts."""

    bucket: int
    tensors: int
    size_bytes: int
    what: str
    begin: float
    end: float


def _make() -> torch.nn.Module:
    """One bucket of the runtime's; a user's algorithm makes more of it."""
    return torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.Tanh(), torch.nn.Linear(300, 2))


def _wrapped(algorithm: Algorithm) -> tuple[Any, torch.optim.Optimizer]:
    model: Any = seeded(rank_and_size()[0], _make)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model.with_bagua([optimizer], algorithm), optimizer


def _train(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(3, 64)).square().mean().backward()
        optimizer.step()


def _profiled(model: Any, optimizer: torch.optim.Optimizer) -> tuple[list[_Range], list[Any]]:
    """What is shown of some steps: buckets' ranges, and all of Pelton's."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _train(model, optimizer, _STEPS)
    found = []
    events = [event for event in profile.events() if event.name.startswith("pelton:")]
    for event in events:
        match = _SHOWN.fullmatch(event.name)
        if match is not None:
            bucket, _, tensors, size_bytes, what = match.groups()
            begin, end = event.time_range.start, event.time_range.end
            found.append(_Range(int(bucket), int(tensors), int(size_bytes), what, begin, end))
    return found, events


def _check(model: Any, optimizer: torch.optim.Optimizer, what: str) -> None:
    _train(model, optimizer, 2)  # the plan is the last one then
    shown, events = _profiled(model, optimizer)
    buckets = len(model.bagua_ddp.bagua_buckets)
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    for kind in ("waits", "runs"):
        mine = sorted((r for r in shown if r.what == kind), key=lambda r: r.begin)
        assert sorted(r.bucket for r in mine) == sorted(list(range(buckets)) * _STEPS), (what, kind, mine)
        assert sum(r.size_bytes for r in mine) == total * _STEPS, (what, kind, mine)
        assert sum(r.tensors for r in mine) == 4 * _STEPS, (what, kind, mine)
        assert all(r.begin <= r.end for r in mine), (what, kind, mine)
    for bucket in range(buckets):
        ranges = sorted((r for r in shown if r.bucket == bucket), key=lambda r: (r.begin, r.end))
        assert [r.what for r in ranges] == ["waits", "runs"] * _STEPS, (what, ranges)
        assert all(one.end <= other.begin for one, other in itertools.pairwise(ranges)), (what, ranges)
    assert events, what
    model.bagua_ddp.detach()


@case(2)
def every_bucket_is_a_range_that_waits_and_one_that_runs() -> None:
    for make in BUILT_IN:
        algorithm = make()
        _check(*_wrapped(algorithm), type(algorithm).__name__)
    for implementation in (Centralized, InPython, Both):
        _check(*_wrapped(Written(implementation)), implementation.__name__)


@case(2)
def the_trainers_wait_is_a_range_of_its_own() -> None:
    model, optimizer = _wrapped(GradientAllReduceAlgorithm())
    _, events = _profiled(model, optimizer)
    waits = [event.name for event in events if event.name.startswith("pelton:wait for the round")]
    assert waits == [f"pelton:wait for the round of {model.bagua_ddp.bagua_module_name}"] * _STEPS, waits
    model.bagua_ddp.detach()


@case(2)
def rounds_that_go_on_beside_training_are_not_shown() -> None:
    """A profiler may end in the middle of them."""
    model, optimizer = _wrapped(DiLoCoAlgorithm(interval=2, delay=1))
    shown, _ = _profiled(model, optimizer)
    assert shown == []
    _train(model, optimizer, 4)
    model.bagua_ddp.detach()


@case(2)
def a_profiler_of_one_rank_disturbs_nobody() -> None:
    """And what comes after it is not shown to it any more."""
    model, optimizer = _wrapped(GradientAllReduceAlgorithm())
    if rank_and_size()[0] == 0:
        shown, _ = _profiled(model, optimizer)
        assert shown
    else:
        _train(model, optimizer, _STEPS)
    _train(model, optimizer, 2)
    model.bagua_ddp.detach()
