"""Snapshots that are copied beside the next passes: what is in them, and from when on they count."""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton import _C
from pelton._training.checkpoint import snapshots
from pelton.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, Unsupported
from pelton.torch_api.algorithms import Algorithm
from pelton.torch_api.algorithms.async_model_average import AsyncModelAverageAlgorithm
from pelton.torch_api.algorithms.decentralized import DecentralizedAlgorithm
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from pelton.torch_api.algorithms.local_sgd import LocalSGDAlgorithm
from pelton.torch_api.algorithms.q_adam import QAdamAlgorithm, QAdamOptimizer
from pelton.torch_api.checkpoint import Snapshots
from pelton_run.snapshots import BUFFERS_VARIABLE, SnapshotBuffers
from torch import nn

from cases.checks import raises
from cases.registry import case

WIDTH = 192  # 144 KiB of weights in a layer
STEPS = 5
Made = tuple[torch.optim.Optimizer, Algorithm]


class _LateCopies:
    """Copies at the last moment that it is given, so that whatever is written before shows.

    Threads: one. Owns: references to the tensors.
    """

    changed: int | None = None  # what it says that it has found
    is_late = False  # it gets through in no time
    may_copy = staticmethod(_C.TensorCopies.may_copy)

    def __init__(self) -> None:
        self._parts: list[tuple[torch.Tensor, int]] = []
        self._target = torch.empty(0)

    is_copied = False

    def begin(self, parts: list[tuple[torch.Tensor, int]], target: torch.Tensor) -> None:
        self._parts, self._target = parts, target

    def finish(self, timeout_s: float) -> int | None:
        assert timeout_s > 0
        if self.is_late:
            raise DeadlineExceeded("a copy beside training has copied 1 of 2 pieces of 1 MiB")
        for tensor, place in self._parts:
            self._target[place : place + tensor.nbytes] = tensor.detach().reshape(-1).view(torch.uint8)
        self.abandon()
        return self.changed

    def abandon(self) -> None:
        self._parts = []


@contextlib.contextmanager
def _memory() -> Iterator[None]:
    """The launcher's, as if it restarted ranks."""
    buffers = SnapshotBuffers(1)
    os.environ.update(buffers.variables_of(0))
    try:
        yield
    finally:
        del os.environ[BUFFERS_VARIABLE]
        buffers.close()


@contextlib.contextmanager
def _copied_late() -> Iterator[None]:
    actual = _C.TensorCopies
    snapshots._C.TensorCopies = _LateCopies  # type: ignore[attr-defined]
    try:
        yield
    finally:
        snapshots._C.TensorCopies = actual  # type: ignore[attr-defined]


def _net(width: int = WIDTH) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 8),
    )


def _loss(net: nn.Module, width: int = WIDTH) -> torch.Tensor:
    inputs = torch.randn(4, width) + bagua.get_rank()
    return nn.functional.cross_entropy(net(inputs), torch.randint(8, (4,)))


def _step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    _loss(net).backward()
    optimizer.step()


def _sgd(net: nn.Module) -> Made:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), GradientAllReduceAlgorithm()


def _wrapped(make: Callable[[nn.Module], Made] = _sgd) -> tuple[nn.Module, torch.optim.Optimizer]:
    net = _net()
    optimizer, algorithm = make(net)
    return net.with_bagua([optimizer], algorithm), optimizer  # type: ignore[operator]


def _q_adam(net: nn.Module) -> Made:
    optimizer = QAdamOptimizer(net.parameters(), lr=0.01, warmup_steps=2)
    return optimizer, QAdamAlgorithm(optimizer, hierarchical=False)


MAKERS: dict[str, Callable[[nn.Module], Made]] = {
    "sgd": _sgd,
    "adam": lambda net: (torch.optim.Adam(net.parameters(), lr=0.01), GradientAllReduceAlgorithm()),
    "decentralized": lambda net: (_sgd(net)[0], DecentralizedAlgorithm(hierarchical=False)),
    "local_sgd": lambda net: (_sgd(net)[0], LocalSGDAlgorithm(2)),
    "q_adam": _q_adam,
}


def _cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _cloned(part) for key, part in value.items()}
    return [_cloned(part) for part in value] if isinstance(value, (list, tuple)) else value


def _assert_equal(found: Any, wanted: Any, where: str) -> None:
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(found, wanted), where
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key in wanted:
            _assert_equal(found[key], wanted[key], f"{where}[{key!r}]")
    elif isinstance(wanted, list):
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            _assert_equal(one, other, f"{where}[{i}]")
    else:
        assert found == wanted, where


def _held(taken: Snapshots) -> list[int]:
    return sorted(buffer.step for buffer in taken._buffers if buffer.sequence)


def _newest(taken: Snapshots) -> dict[str, Any]:
    return snapshots._value_of(max(taken._buffers, key=lambda buffer: buffer.sequence))


@case(2)
def what_is_in_one_is_what_was_there_when_it_was_kept() -> None:
    """However late it is copied, under each algorithm that Pelton runs."""
    for name, make in MAKERS.items():
        with _memory(), _copied_late():
            net, optimizer = _wrapped(make)
            taken = Snapshots(net, optimizer)
            for step in range(1, STEPS + 1):
                _step(net, optimizer)
                wanted = _cloned({"model": dict(net.state_dict()), "optimizers": [optimizer.state_dict()]})
                wanted["random"] = torch.get_rng_state()
                taken.keep(step, b"extra")
                loss = _loss(net)
                assert _held(taken) == [s for s in (step - 3, step - 2, step - 1) if s > 0][-2:], f"{name}: too early"
                loss.backward()
                assert _held(taken)[-1] == step, f"{name}: it has to count before the round has ended"
                found = _newest(taken)
                _assert_equal({key: found[key] for key in wanted}, wanted, f"{name}, step {step}")
                assert found["extra"] == b"extra"


@case(2)
def it_counts_before_whatever_pelton_writes() -> None:
    with _memory(), _copied_late():
        net, optimizer = _wrapped()
        taken = Snapshots(net, optimizer)
        weight = net.get_parameter("0.weight")
        writers: list[Callable[[], object]] = [
            optimizer.step,
            lambda: bagua.allreduce_inplace(weight.data),
            lambda: net.load_state_dict({name: torch.zeros_like(t) for name, t in net.state_dict().items()}),
            lambda: net.bagua_ddp.consolidate(),  # type: ignore[operator,union-attr]
            lambda: taken.keep(46),
            taken.wait,
            bagua.communication.barrier,
        ]
        for step, write in zip(itertools.count(9, 9), writers):
            _step(net, optimizer)
            _loss(net).backward()
            before = weight.detach().clone()
            taken.keep(step)
            write()
            assert step in _held(taken), step
            value = next(snapshots._value_of(b) for b in taken._buffers if b.sequence and b.step == step)
            assert torch.equal(value["model"]["0.weight"], before), step


@case(2)
def of_a_step_that_is_kept_twice_the_later_one_is_given_back() -> None:
    with _memory():
        net, optimizer = _wrapped()
        taken = Snapshots(net, optimizer)
        for extra in (b"one", b"two", b"three"):
            _step(net, optimizer)
            taken.keep(4, extra)
        assert taken.wait() == 4
        assert taken.restore() == (4, b"three")
        with raises(InvalidArgument, "step=3: the last snapshot is of step 4; count steps over all epochs"):
            taken.keep(3)


@case(2)
def one_of_a_weight_that_was_changed_by_hand_does_not_count() -> None:
    with _memory(), _copied_late():
        net, optimizer = _wrapped()
        taken = Snapshots(net, optimizer)
        _step(net, optimizer)
        taken.keep(1)
        assert taken.wait() == 1
        taken.keep(2)
        with torch.no_grad():
            net.get_parameter("3.weight").mul_(2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _step(net, optimizer)
        (text,) = (str(warning.message) for warning in caught if "snapshot" in str(warning.message))
        assert text.startswith("the snapshot of step 2 does not count: '3.weight' was changed while it was"), text
        assert _held(taken) == [1]
        taken.keep(3)
        assert _held(taken) == [1, 3], "they are copied at once from now on"


@case(2)
def a_change_that_leaves_no_version_is_seen_in_the_copy() -> None:
    with _memory(), _copied_late():
        net, optimizer = _wrapped()
        taken = Snapshots(net, optimizer)
        _step(net, optimizer)
        taken.keep(1)
        _LateCopies.changed = 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert taken.wait() == 0
        _LateCopies.changed = None
        assert any("step 1 does not count: '0.weight'" in str(warning.message) for warning in caught)


@case(2)
def one_that_is_not_through_in_time_is_said_and_leaves_the_one_before() -> None:
    with _memory(), _copied_late():
        net, optimizer = _wrapped()
        taken = Snapshots(net, optimizer)
        taken.keep(1)
        assert taken.wait() == 1
        taken.keep(2)
        _LateCopies.is_late = True
        with raises(DeadlineExceeded, f"the snapshot of step 2 of rank {bagua.get_rank()}: a copy beside training has"):
            taken.wait()
        _LateCopies.is_late = False
        assert taken.wait() == 1
        taken.keep(3)
        assert taken.wait() == 3
        assert _held(taken) == [1, 3]


@case(1, 2)
def they_follow_each_other() -> None:
    """By the thread that copies: nothing in between, an exception, and steps that are left out."""
    with _memory():
        net, optimizer = _wrapped()
        taken = Snapshots(net, optimizer, every=2)
        assert taken.wait() == 0
        _step(net, optimizer)
        taken.keep(1)
        assert taken.wait() == 0, "it is left out"
        for step in (2, 4, 6):
            taken.keep(step)
        assert taken.wait() == 6
        assert _held(taken) == [2, 4, 6]
        taken.keep(8)
        with contextlib.suppress(RuntimeError):
            net(torch.ones(4, 3))
        _step(net, optimizer)
        assert _held(taken) == [4, 6, 8]
        wanted = _cloned(dict(net.state_dict()))
        other = Snapshots(net, optimizer)
        taken.keep(10)
        other.keep(11)
        assert other.wait() == 11
        assert _held(taken) == [8, 10, 11]
        _assert_equal(_newest(taken)["model"], wanted, "model")


@case(2)
def what_is_small_or_not_pelton_s_own_counts_at_once() -> None:
    with _memory(), _copied_late():
        small = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
        small = small.with_bagua([optimizer], GradientAllReduceAlgorithm())  # type: ignore[operator]
        taken = Snapshots(small, optimizer)
        taken.keep(1)
        assert _held(taken) == [1]
    with _memory(), _copied_late():
        plain = _net()
        taken = Snapshots(plain)
        taken.keep(1)
        assert _held(taken) == [1]


@case(2)
def the_end_of_the_job_lets_the_last_one_count() -> None:
    with _memory(), _copied_late():
        net, optimizer = _wrapped()
        taken = Snapshots(net, optimizer)
        _step(net, optimizer)
        taken.keep(1)
        assert _held(taken) == []
        bagua.destroy_process_group()
        assert _held(taken) == [1]
        bagua.init_process_group(torch_distributed=False)


@case(2)
def nothing_is_begun_where_the_state_cannot_be_kept() -> None:
    with _memory(), _copied_late():
        net = _net()
        net = net.with_bagua([_sgd(net)[0]], AsyncModelAverageAlgorithm())  # type: ignore[operator]
        taken = Snapshots(net)
        with raises(Unsupported, "averages weights beside training"):
            taken.keep(1)
        assert taken.wait() == 0


@case(1)
def a_rank_has_memory_for_the_snapshots_of_one_model() -> None:
    with _memory():
        net, optimizer = _wrapped()
        other, others = _wrapped()
        one, another = Snapshots(net, optimizer), Snapshots(other, others)
        one.keep(1)
        another.keep(1)
        with raises(FailedPrecondition, "a rank has memory for those of one"):
            one.keep(2)
        Snapshots(other, others).keep(2)  # as a script that makes them anew
        another.keep(3)


@case(2)
def schedulers_go_back_with_their_optimizers() -> None:
    with _memory():
        net, optimizer = _wrapped()
        schedulers = [
            torch.optim.lr_scheduler.StepLR(optimizer, 2),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ]
        taken = Snapshots(net, optimizer, lr_scheduler=schedulers)
        rates = []
        for step in range(1, STEPS + 1):
            _step(net, optimizer)
            for scheduler in schedulers:
                scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
            if step == 3:
                taken.keep(step)
                taken.wait()
        assert taken.restore()[0] == 3
        for rate in rates[3:]:
            _step(net, optimizer)
            for scheduler in schedulers:
                scheduler.step()
            assert optimizer.param_groups[0]["lr"] == rate
        with raises(InvalidArgument, "2 schedulers, 0 are given"):
            Snapshots(net, optimizer).restore()
