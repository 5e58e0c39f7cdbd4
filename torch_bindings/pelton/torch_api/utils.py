"""Bagua's small helpers: flattening lists of tensors, and averages over time."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from pelton.errors import InvalidArgument

flatten: Callable[..., Any] = _flatten_dense_tensors
unflatten: Callable[..., Any] = _unflatten_dense_tensors

# Bagua has the first four; the others are what Pelton communicates beside them.
_NAMES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.uint8: "u8",
    torch.int64: "i64",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
_MOST_OUTLIER_ROUNDS = 10
_MOST_WINDOWS = 64
_NO_RECORDS: Sequence[float] = []  # a list, as Bagua's default is; nothing is added to it


def apply_flattened_call(
    bucket: Sequence[torch.Tensor], call: Callable[..., object], extra_args: Sequence[Any] | None = None
) -> None:
    """Calls a function with the tensors as one flat tensor, and copies what it has made of it back into them.

    After `torch.distributed.all_reduce` the sum is divided by the world size, as in Bagua.

    Args:
      bucket: tensors of one dtype and device.
      call: works in place on the flat tensor.
      extra_args: its further arguments.
    """
    flat = flatten(bucket)
    call(flat, *(extra_args or ()))
    if call is dist.all_reduce:
        flat /= dist.get_world_size()
    for tensor, part in zip(bucket, unflatten(flat, bucket)):
        tensor.copy_(part)


def apply_flattened_call_all(tensors: Iterable[torch.Tensor], call: Callable[..., object]) -> None:
    """The same for tensors of several types, one flat tensor per type."""
    by_type: dict[str, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.type(), []).append(tensor)
    for bucket in by_type.values():
        apply_flattened_call(bucket, call)


def check_contiguous(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether each tensor begins in memory where the one before it ends."""
    return all(
        first.data_ptr() + first.numel() * first.element_size() == second.data_ptr()
        for first, second in itertools.pairwise(tensors)
    )


def get_flattened_tensor(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A new flat tensor of the first one's dtype with all their elements; None of no tensors."""
    if not tensors:
        return None
    return torch.cat([tensor.detach().reshape(-1).to(tensors[0]) for tensor in tensors])


def to_bagua_datatype(datatype: torch.dtype) -> str:
    """Bagua's name of a dtype, or one of the same form where Bagua has none.

    Raises:
      InvalidArgument: it cannot be communicated.
    """
    if datatype not in _NAMES:
        known = ", ".join(map(str, _NAMES))
        raise InvalidArgument(f"datatype={datatype}: unsupported data type; must be one of {known}")
    return _NAMES[datatype]


def average_by_removing_extreme_values(raw_score_list: Sequence[float]) -> tuple[float, float, list[float]]:
    """Mean, deviation and what is left of measurements without their first third and without outliers.

    An outlier is a deviation or more from the mean; outliers are removed once, and again while the deviation is not
    below the mean, at most ten times.

    Raises:
      InvalidArgument: there are no measurements.
    """
    if not raw_score_list:
        raise InvalidArgument("raw_score_list: is empty; an average needs one measurement at least")
    scores = _without_outliers([float(score) for score in raw_score_list[len(raw_score_list) // 3 :]])
    for _ in range(_MOST_OUTLIER_ROUNDS):
        if statistics.pstdev(scores) < statistics.fmean(scores):
            break
        scores = _without_outliers(scores)
    return statistics.fmean(scores), statistics.pstdev(scores), scores


def _without_outliers(scores: list[float]) -> list[float]:
    mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
    return [score for score in scores if abs(score - mean) < deviation] or scores


class StatisticalAverage:
    """A value's means over the last 1, 2, 4, ... seconds, in memory that does not grow with time.

    Threads: one. Owns: the means.
    """

    def __init__(
        self,
        last_update_time: float | None = None,
        records: Sequence[float] = _NO_RECORDS,
        record_tail: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Begins anew, or where another one was.

        Args:
          last_update_time: when the last value was recorded, as `time.time()` counts; now if None. Units: seconds.
          records: entry i is the mean of the 2^i seconds before that.
          record_tail: how many seconds more were recorded, and the mean of all.
        """
        self.last_update_time = time.time() if last_update_time is None else last_update_time
        self.records = list(records)
        self.record_tail = record_tail

    def record_seconds(self) -> float:
        """The longest time that `records` has a mean of. Units: seconds."""
        return 2.0 ** (len(self.records) - 1) if self.records else 0.0

    def total_recording_time(self) -> float:
        """The time between the first record and the last. Units: seconds."""
        return self.record_seconds() + self.record_tail[0]

    def get_records_mean(self, last_n_seconds: float) -> float:
        """The mean of the last seconds before the last record, between two known ones on the line through them."""
        if last_n_seconds <= 0:
            return 0.0
        points = list(self._points())
        if not points:
            return self.record_tail[1]
        for (shorter, first), (longer, second) in itertools.pairwise(points):
            if shorter <= last_n_seconds <= longer:
                return first + (second - first) * (last_n_seconds - shorter) / (longer - shorter)
        return points[0][1] if last_n_seconds < points[0][0] else points[-1][1]

    def record(self, val: float) -> None:
        """Says that the value was `val` ever since the last record."""
        now = time.time()
        held_s, before_s = now - self.last_update_time, self.total_recording_time()
        windows = (2.0**i for i in range(_MOST_WINDOWS))
        spans = list(itertools.takewhile(lambda window: window <= held_s + before_s, windows))
        records = [self._mean_after(val, held_s, window) for window in spans]
        tail_s = held_s + before_s - (spans[-1] if spans else 0.0)
        tail = self._mean_after(val, held_s, held_s + before_s)
        self.last_update_time, self.records = now, records
        self.record_tail = (tail_s, tail)

    def get(self, last_n_seconds: float) -> float:
        """The mean of the last seconds before now; since the last record the value counts as what it was then."""
        since_s = time.time() - self.last_update_time
        if last_n_seconds <= since_s:
            return self.records[0] if self.records else self.record_tail[1]
        return self.get_records_mean(last_n_seconds - since_s)

    def _points(self) -> Iterator[tuple[float, float]]:
        """Every time that a mean is known of, with it."""
        yield from ((2.0**i, mean) for i, mean in enumerate(self.records))
        if self.records and self.record_tail[0] > 0:
            yield self.total_recording_time(), self.record_tail[1]

    def _mean_after(self, val: float, held_s: float, window_s: float) -> float:
        """The mean over a window that ends with `held_s` seconds of `val`."""
        if window_s <= held_s or window_s == 0:
            return val
        older_s = window_s - held_s
        return (val * held_s + self.get_records_mean(older_s) * older_s) / window_s

    def __str__(self) -> str:
        fields = ("last_update_time", "records", "record_tail")
        return str({name: getattr(self, name) for name in fields})
