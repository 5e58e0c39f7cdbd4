"""Batch normalisation over all ranks; see cases/sync_batchnorm.py."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from pelton.errors import InvalidArgument
from pelton.torch_api.contrib.sync_batchnorm import SyncBatchNorm
from spawn import case_ids, check_case
from torch import nn

MODULE = "cases.sync_batchnorm"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_sync_batchnorm(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


def test_alone_it_is_batch_norm() -> None:
    """Without any job: in training, in evaluation, and with one value a channel."""
    plain, ours = nn.BatchNorm1d(3, momentum=None), SyncBatchNorm(3, momentum=None)
    for _ in range(3):
        inputs = torch.randn(5, 3)
        assert torch.equal(plain(inputs), ours(inputs))
    for name, value in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    assert torch.equal(plain.eval()(inputs), ours.eval()(inputs))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ours.train()(inputs[:1])


@pytest.mark.parametrize("shape", [[3], [4, 2], [0, 2]])
def test_inputs_of_other_shapes_are_refused(shape: list[int]) -> None:
    with pytest.raises(InvalidArgument, match=r"must be \[N, 3\] or \[N, 3, \.\.\.\]"):
        SyncBatchNorm(3)(torch.zeros(shape))


def _net() -> Any:
    shared = nn.BatchNorm1d(4, momentum=0.3, eps=1e-3, affine=False)
    inner = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm3d(4, track_running_stats=False))
    return nn.Sequential(nn.Linear(4, 4), shared, inner, shared, nn.GroupNorm(2, 4), nn.SyncBatchNorm(4).eval())


def test_conversion_keeps_what_the_layers_hold() -> None:
    model = _net()
    plain = copy.deepcopy(model)
    tensors = [*model.parameters(), *model.buffers()]
    made = SyncBatchNorm.convert_sync_batchnorm(model)
    assert made is model
    assert [id(tensor) for tensor in [*made.parameters(), *made.buffers()]] == [id(tensor) for tensor in tensors]
    kinds = [type(layer) for layer in (made[1], made[2][0], made[2][1], made[3], made[5])]
    assert kinds == [SyncBatchNorm] * 5
    assert isinstance(made[4], nn.GroupNorm)
    assert made[1] is made[3]
    options = ("eps", "momentum", "affine", "track_running_stats", "num_features", "training")
    for old, new in zip(plain.modules(), made.modules()):
        assert all(getattr(old, option, None) == getattr(new, option, None) for option in options)
    assert made.state_dict().keys() == plain.state_dict().keys()


def test_a_layer_alone_is_replaced() -> None:
    layer = nn.BatchNorm1d(3, momentum=None).eval()
    made = SyncBatchNorm.convert_sync_batchnorm(layer)
    assert isinstance(made, SyncBatchNorm)
    assert made.weight is layer.weight
    assert made.momentum is None
    assert not made.training


def test_a_lazy_layer_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"'0\.1' has no shape yet"):
        SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Sequential(nn.ReLU(), nn.LazyBatchNorm1d())))
