"""`pelton.check`, and PELTON_CHECK."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pelton
import pelton.torch_api as bagua
import torch
from pelton._training.data_parallel._equality import hashes
from pelton.errors import FailedPrecondition, InvalidArgument
from pelton.torch_api.algorithms import Algorithm
from torch import nn

from cases.checks import SHAPE, batch, make_mlp, raises, rank_and_size, run_backward, seeded, square_loss
from cases.registry import case


@contextmanager
def _comparing(interval: int) -> Iterator[None]:
    os.environ["PELTON_CHECK"] = str(interval)
    try:
        yield
    finally:
        del os.environ["PELTON_CHECK"]


def _normalised() -> Any:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))


@case(2)
def a_report_of_what_is_local() -> None:
    model = seeded(0, _normalised)
    model.register_buffer("seen", torch.zeros(1))
    given = torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1)
    other = torch.optim.Adam(model[3].parameters())
    with raises(InvalidArgument, "not wrapped"):
        pelton.check(model, given)
    model.with_bagua(given, "gradient_allreduce")
    text = str(pelton.check(model, given))
    assert "running statistics of '1'" in text and "'seen'" in text, text
    assert "no optimizer that is known steps '3.weight', '3.bias'" in text, text
    assert "evaluation mode" not in text and "differ between" not in text, text
    model.eval()
    text = str(pelton.check(model, [given, other]))
    assert "the model is in evaluation mode" in text and "not told of 'Adam'" in text, text
    assert "no optimizer that is known" not in text, text
    model.train()

    def step() -> None:
        given.zero_grad()
        square_loss(model, batch(rank_and_size()[0], 0, 8, 6)).backward()
        given.step()

    text = str(pelton.check(model, [given, other], step))
    assert "buffers differ between the ranks after the step, '1.running_mean' first" in text, text
    assert "weights differ" not in text, text


@case(2)
def a_report_of_nothing() -> None:
    model = seeded(rank_and_size()[0], make_mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = bagua.data_parallel.DistributedDataParallel(model, optimizers=[optimizer])
    report = pelton.check(wrapped, optimizer)
    assert not report and "nothing of it is local" in str(report), str(report)


@case(2)
def weights_that_differ_are_named_on_all_ranks() -> None:
    with _comparing(3):
        model = seeded(0, make_mlp)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.with_bagua(optimizer, "gradient_allreduce")
    for step in range(4):
        optimizer.zero_grad()
        run_backward(model, step)
        optimizer.step()
    with torch.no_grad():
        model[2].weight[0, 0] += rank_and_size()[0]
    optimizer.step()
    with raises(FailedPrecondition, "PELTON_CHECK: after step 6 '2.weight'", "on rank 1", "Likely reasons"):
        optimizer.step()


@case(2)
def every_algorithm_passes_its_own_check() -> None:
    from cases.programs import EVERY, STEPS, plain, under

    with _comparing(2):
        for name in EVERY:
            assert len(under(name, plain)) == 4 and STEPS >= 4, name


@case(2)
def an_optimizer_that_was_not_given_is_the_guess() -> None:
    with _comparing(1):
        model = seeded(0, make_mlp)
        model.with_bagua([], "gradient_allreduce")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + rank_and_size()[0]))
    run_backward(model)
    with raises(FailedPrecondition, "after step 1", "'0.weight'", "SGD steps the model and was not given"):
        optimizer.step()


@case(2)
def weights_after_a_round_are_compared() -> None:
    with _comparing(1):
        model = seeded(0, make_mlp)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.with_bagua(optimizer, Algorithm.init("local_sgd", interval=3))
    seen = []
    for step in range(6):
        optimizer.zero_grad()
        square_loss(model, batch(rank_and_size()[0], step, *SHAPE)).backward()
        optimizer.step()
        seen.append(model.bagua_ddp.weights_are_equal)
    assert seen == [False, False, True, False, False, True], seen
    with torch.no_grad():
        model[0].bias += rank_and_size()[0]  # and the next round makes it equal again
    optimizer.step()
    optimizer.step()
    optimizer.step()


@case(2)
def rounds_that_leave_ranks_apart_are_not_compared() -> None:
    """A fragment of the model at a time, or a part of each rank's own weights that stays."""
    for options in ({"interval": 4, "fragments": 2}, {"interval": 2, "mix": 0.5}):
        with _comparing(1):
            model = seeded(0, make_mlp)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model.with_bagua(optimizer, Algorithm.init("diloco", **options))
        for step in range(8):
            optimizer.zero_grad()
            square_loss(model, batch(rank_and_size()[0], step, *SHAPE)).backward()
            optimizer.step()
            assert not model.bagua_ddp.weights_are_equal, (options, step)
        model.bagua_ddp.detach()


@case(2)
def every_bit_counts_in_every_dtype() -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.complex64, torch.int64)
    for dtype in dtypes:
        for count in (0, 1, 7, 33):
            tensor = torch.arange(count + 1).to(dtype)[1:]  # begins in the middle of a word
            (before,) = hashes([tensor]).tolist()
            assert hashes([tensor.clone()]).tolist() == [before], dtype
            for at in {0, count // 2, count - 1} if count else ():
                other = tensor.clone()
                other.view(torch.uint8).reshape(count, -1)[at, -1] ^= 1
                assert hashes([other]).tolist() != [before], (dtype, count, at)


@case(1)
def the_order_counts_and_so_does_the_sign_of_a_whole_tensor() -> None:
    for count in (4, 70_002):
        tensor = torch.arange(1.0, count + 1, dtype=torch.float64)
        others = [-tensor, tensor.flip(0), tensor.reshape(2, -1).flip(0)]
        numbers = hashes([tensor, *others]).tolist()
        assert len(set(numbers)) == 4, (count, numbers)
