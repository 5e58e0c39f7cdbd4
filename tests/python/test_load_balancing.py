"""Samplers that balance complexity; no ranks needed: each sampler is told whose share it is."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pelton.errors import InvalidArgument
from pelton.torch_api.contrib import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler
from torch.utils.data import DataLoader, TensorDataset

COMPLEXITIES = [5, 1, 4, 1, 3, 9, 2, 6, 5, 3, 5]
# What Bagua 0.9's sampler gives three ranks of these items: options, epoch, shares.
BAGUAS: list[tuple[dict[str, Any], int, list[list[int]]]] = [
    ({}, 0, [[0, 4, 7, 1], [8, 9, 5, 3], [10, 2, 1, 6]]),
    ({"seed": 3}, 0, [[7, 1, 4, 0], [5, 3, 9, 8], [1, 6, 2, 10]]),
    ({}, 2, [[4, 7, 1, 0], [9, 5, 3, 8], [2, 1, 6, 10]]),
    ({"random_level": 0.5}, 0, [[2, 4, 7, 3], [8, 9, 5, 6], [0, 10, 3, 1]]),
    ({"random_level": 1.0}, 1, [[1, 0, 7, 9], [3, 4, 8, 2], [10, 5, 9, 6]]),
    ({"drop_last": True}, 0, [[0, 4, 1], [8, 9, 3], [10, 2, 6]]),
    ({"shuffle": False}, 0, [[1, 4, 0, 7], [3, 9, 8, 5], [6, 2, 10, 1]]),
]
Items: Any = st.lists(st.integers(0, 50), min_size=1, max_size=40)


def _samplers(complexities: list[int], ranks: int, **options: Any) -> list[LoadBalancingDistributedSampler]:
    items: Any = range(len(complexities))
    make = LoadBalancingDistributedSampler
    return [make(items, complexities.__getitem__, num_replicas=ranks, rank=r, **options) for r in range(ranks)]


def _shares(samplers: list[LoadBalancingDistributedSampler], epoch: int = 0) -> list[list[int]]:
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


@pytest.mark.parametrize(("options", "epoch", "expected"), BAGUAS)
def test_the_order_is_baguas(options: dict[str, Any], epoch: int, expected: list[list[int]]) -> None:
    assert _shares(_samplers(COMPLEXITIES, 3, **options), epoch) == expected


def _formula(complexities: list[int], ranks: int, seed: int, epoch: int, level: float, drops: bool) -> list[list[int]]:
    """The shares by the formulas of the documentation."""
    count = len(complexities)
    steps = count // ranks if drops else -(-count // ranks)
    generator = torch.Generator().manual_seed(seed + epoch)
    bound = int((max(complexities) - min(complexities)) * level + 1)
    added = torch.randint(bound, (count,), generator=generator).tolist()
    ordered = [i for _, i in sorted((c + a, i) for i, (c, a) in enumerate(zip(complexities, added)))]
    order = torch.randperm(max(1, steps), generator=generator).tolist()[:steps]
    return [[ordered[(ranks * chunk + rank) % count] for chunk in order] for rank in range(ranks)]


@settings(deadline=None)
@given(
    Items,
    st.integers(1, 9),
    st.integers(0, 99),
    st.integers(0, 9),
    st.sampled_from([0, 0.25, 1.0]),
    st.booleans(),
)
def test_the_order_follows_the_formulas(
    complexities: list[int], ranks: int, seed: int, epoch: int, level: float, drops: bool
) -> None:
    samplers = _samplers(complexities, ranks, seed=seed, random_level=level, drop_last=drops)
    assert _shares(samplers, epoch) == _formula(complexities, ranks, seed, epoch, level, drops)


@settings(deadline=None)
@given(Items, st.integers(1, 9), st.booleans(), st.booleans())
def test_every_item_comes_once(complexities: list[int], ranks: int, drops: bool, shuffles: bool) -> None:
    """But for what fills the last chunk up, or is left out."""
    samplers = _samplers(complexities, ranks, drop_last=drops, shuffle=shuffles)
    shares = _shares(samplers)
    assert {len(share) for share in shares} == {len(sampler) for sampler in samplers} == {samplers[0].num_samples}
    counts = Counter(item for share in shares for item in share)
    if drops:
        assert set(counts.values()) <= {1}
        assert sum(counts.values()) == len(complexities) - len(complexities) % ranks
    else:
        assert set(counts) == set(range(len(complexities)))
        assert sum(counts.values()) - len(complexities) < ranks


@settings(deadline=None)
@given(Items, st.integers(1, 9), st.integers(0, 9))
def test_items_of_a_step_are_neighbours_in_complexity(complexities: list[int], ranks: int, epoch: int) -> None:
    shares = _shares(_samplers(complexities, ranks, drop_last=True), epoch)
    ordered = sorted(complexities)
    widest = max((ordered[i + ranks - 1] - ordered[i] for i in range(len(ordered) - ranks + 1)), default=0)
    for step in zip(*shares):
        found = [complexities[item] for item in step]
        assert max(found) - min(found) <= widest


def _cut_by(most: int, complexities: list[int]) -> Callable[[list[int]], list[list[int]]]:
    """Batches whose complexities add up to no more than `most`, or that have one item."""

    def cut(items: list[int]) -> list[list[int]]:
        batches: list[list[int]] = []
        for item in items:
            if batches and sum(complexities[i] for i in [*batches[-1], item]) <= most:
                batches[-1].append(item)
            else:
                batches.append([item])
        return batches

    return cut


@settings(deadline=None)
@given(Items, st.integers(1, 6), st.integers(1, 100), st.booleans(), st.integers(0, 5))
def test_ranks_have_equally_many_batches(
    complexities: list[int], ranks: int, most: int, drops: bool, epoch: int
) -> None:
    cut = _cut_by(most, complexities)
    samplers = _samplers(complexities, ranks)
    batch_samplers = [LoadBalancingDistributedBatchSampler(sampler, cut, drops) for sampler in samplers]
    for batch_sampler in batch_samplers:
        batch_sampler.set_epoch(epoch)
    own = [cut(list(sampler)) for sampler in samplers]
    target = min(map(len, own)) if drops else max(map(len, own))
    for batches, batch_sampler in zip(own, batch_samplers):
        assert len(batch_sampler) == target
        assert list(batch_sampler) == list(itertools.islice(itertools.cycle(batches), target))


def test_a_loader_takes_them() -> None:
    data = TensorDataset(torch.arange(11.0), torch.tensor(COMPLEXITIES))
    before = data.tensors[1].clone()
    sampler = LoadBalancingDistributedSampler(data, lambda item: item[1], num_replicas=3, rank=1, random_level=1.0)
    for epoch in range(3):  # complexities that are views of the data must not change it
        sampler.set_epoch(epoch)
        assert [int(item[0]) for item in DataLoader(data, sampler=sampler)] == list(sampler)
    assert torch.equal(data.tensors[1], before)
    batches = LoadBalancingDistributedBatchSampler(sampler, lambda items: [items[:1], items[1:]])
    assert [values.tolist() for values, _ in DataLoader(data, batch_sampler=batches)] == list(batches)


def test_the_process_is_one_of_one_rank_by_default() -> None:
    (sampler,) = _samplers(COMPLEXITIES, 1)
    default = LoadBalancingDistributedSampler(range(11), COMPLEXITIES.__getitem__)  # type: ignore[arg-type]
    assert (default.num_replicas, default.rank) == (1, 0)
    assert list(default) == list(sampler)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"random_level": 1.5}, "random_level=1.5"),
        ({"random_level": -0.1}, "random_level=-0.1"),
        ({"num_replicas": 2, "rank": 2}, "rank=2: must be 0 to 1"),
        ({"num_replicas": 0, "rank": 0}, "num_replicas=0"),
        ({"process_group": "all"}, "process_group"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LoadBalancingDistributedSampler(range(11), COMPLEXITIES.__getitem__, **options)  # type: ignore[arg-type]


def test_what_has_no_order_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="has no items"):
        LoadBalancingDistributedSampler([], lambda item: item)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="nan for item 0"):
        LoadBalancingDistributedSampler([1, 2], lambda _: float("nan"))  # type: ignore[arg-type]


def test_wrong_samplers_are_refused() -> None:
    (dropping,) = _samplers(COMPLEXITIES, 1, drop_last=True)
    with pytest.raises(ValueError, match="drop_last=True"):
        LoadBalancingDistributedBatchSampler(dropping, lambda items: [items])
    other: Any = torch.utils.data.SequentialSampler(COMPLEXITIES)
    with pytest.raises(ValueError, match="is a SequentialSampler"):
        LoadBalancingDistributedBatchSampler(other, lambda items: [items])
    samplers = _samplers(COMPLEXITIES, 2)
    only_first = set(samplers[0])
    with pytest.raises(InvalidArgument, match="rank 1 no batch"):
        LoadBalancingDistributedBatchSampler(samplers[0], lambda items: [items] if set(items) == only_first else [])
