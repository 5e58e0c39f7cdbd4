"""Bagua's helpers; no ranks needed."""

from __future__ import annotations

import time

import pytest
import torch
from pelton.errors import InvalidArgument
from pelton.torch_api import utils


def test_flattened_calls_reach_every_tensor() -> None:
    tensors = [torch.ones(2, 3), torch.ones(4).double(), torch.full((5,), 2.0)]
    utils.apply_flattened_call_all(tensors, lambda flat: flat.mul_(3))
    assert [set(tensor.flatten().tolist()) for tensor in tensors] == [{3}, {3}, {6}]
    utils.apply_flattened_call(tensors[:1], torch.Tensor.add_, (1,))
    assert set(tensors[0].flatten().tolist()) == {4}


def test_flat_tensors() -> None:
    base = torch.arange(6.0)
    assert utils.check_contiguous([base[:2], base[2:5], base[5:]])
    assert not utils.check_contiguous([base[:2], base[3:]])
    flat = utils.get_flattened_tensor([base[:2].view(2, 1), base[4:]])
    assert flat is not None
    assert flat.tolist() == [0, 1, 4, 5]
    assert flat.data_ptr() != base.data_ptr()
    assert utils.get_flattened_tensor([]) is None
    strided = torch.nn.Parameter(torch.arange(4).reshape(2, 2).double()).t()
    mixed = utils.get_flattened_tensor([base[:1].half(), strided])
    assert mixed is not None
    assert (mixed.dtype, mixed.tolist()) == (torch.float16, [0, 0, 2, 1, 3])
    assert not mixed.requires_grad
    assert utils.check_contiguous([])
    assert utils.check_contiguous([base[2:]])
    assert not utils.check_contiguous([base[3:], base[:3]]), "the other way round"
    assert not utils.check_contiguous([base[:2], base[1:]]), "they overlap"
    assert utils.unflatten(utils.flatten([base[:2], base[2:]]), [base[:2], base[2:]])[1].tolist() == [2, 3, 4, 5]


def test_names_of_dtypes() -> None:
    dtypes = (torch.float32, torch.float16, torch.uint8, torch.int64, torch.bfloat16, torch.bool, torch.complex64)
    names = ["f32", "f16", "u8", "i64", "bf16", "bool", "c64"]
    assert [utils.to_bagua_datatype(dtype) for dtype in dtypes] == names
    with pytest.raises(InvalidArgument, match=r"torch.uint16"):
        utils.to_bagua_datatype(torch.uint16)


def test_extreme_values_are_left_out() -> None:
    mean, deviation, left = utils.average_by_removing_extreme_values([900, 900, 900, 10, 12, 11, 500, 10, 11])
    assert left == [10, 12, 11, 10, 11]
    assert mean == pytest.approx(10.8)
    assert deviation == pytest.approx(0.748331, abs=1e-5)
    assert utils.average_by_removing_extreme_values([7]) == (7, 0, [7])
    assert utils.average_by_removing_extreme_values([900, 5, 5]) == (5, 0, [5, 5]), "none deviates"
    with pytest.raises(InvalidArgument, match="raw_score_list: is empty"):
        utils.average_by_removing_extreme_values([])


def test_an_average_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    average = utils.StatisticalAverage(now, [5.0, 4.5, 3.5], (2.0, 2.5))
    now += 1.0
    average.record(6.0)
    assert average.total_recording_time() == pytest.approx(7)
    for seconds, mean in ((1, 6.0), (2, (6 + 5) / 2), (4, (6 + 4.0 * 3) / 4), (7, (6 + 2.5 * 6) / 7), (0, 0.0)):
        assert average.get_records_mean(seconds) == pytest.approx(mean), seconds
    now += 2.0
    assert average.get(1) == 6.0
    assert average.get(4) == pytest.approx(5.5)
    fresh = utils.StatisticalAverage()
    now += 0.5
    fresh.record(3.0)
    assert fresh.get_records_mean(10) == 3.0
    now += 4.0
    fresh.record(7.0)
    assert fresh.get_records_mean(4) == 7.0
    assert fresh.get_records_mean(4.5) == pytest.approx((7 * 4 + 3 * 0.5) / 4.5)
