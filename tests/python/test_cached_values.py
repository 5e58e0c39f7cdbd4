"""How the cache writes values: what comes back is what went in, and what is read can do no more than be a value."""

from __future__ import annotations

import collections
import contextlib
import pickle
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pelton.errors import InvalidArgument, PermissionDenied
from pelton.torch_api.contrib import _values

Point = collections.namedtuple("Point", "x y")
Leaves: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.binary(),
    st.builds(
        lambda n, kind: torch.arange(n).to(kind), st.integers(0, 5), st.sampled_from([torch.bool, torch.bfloat16])
    ),
    st.builds(lambda n, kind: numpy.arange(n).astype(kind), st.integers(0, 5), st.sampled_from(["u1", "f4", "c16"])),
    st.builds(numpy.float32, st.floats(width=32)),
    st.sets(st.integers()),
    st.frozensets(st.text()),
)
Values: Any = st.recursive(
    Leaves,
    lambda parts: st.lists(parts) | st.lists(parts).map(tuple) | st.dictionaries(st.text() | st.integers(), parts),
    max_leaves=8,
)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, (numpy.ndarray, numpy.generic)):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_same, one.values(), other.values()))
    return bool(repr(one) == repr(other)) if isinstance(one, (float, complex)) else bool(one == other)


@settings(deadline=None)
@given(Values)
def test_values_come_back_as_they_were(value: Any) -> None:
    data = _values.dumps(value, allow_pickle=False)
    assert data[:1] == b"P"
    assert _same(_values.loads(data, allow_pickle=False), value)


def test_views_and_numbers_of_numpys_come_back() -> None:
    value = {
        "view": torch.arange(12).view(3, 4).t()[1:],
        "zero": torch.tensor(2.5),
        "array": numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3))[:, ::2],
        "nothing": numpy.empty((0, 3), "i2"),
        "0-d": numpy.array(7),
        "number": numpy.int16(-3),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "type": torch.float16,
    }
    assert _same(_values.loads(_values.dumps(value, False), False), value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Point(1, 2), "holds a Point"),
        ({"a": [bytearray(b"x")]}, "holds a bytearray"),
        (numpy.array(["text"]), "numpy array of <U4"),
        (numpy.arange(3).astype(">i4"), "numpy array of >i4"),
        (torch.nn.Parameter(torch.ones(2)), "holds a Parameter"),
        (torch.ones(2).to_sparse(), "torch.sparse_coo tensor"),
        ({numpy.int64(3): 1}, "int64 as a key"),
        (("\0numpy", True, torch.ones(2)), "begins like an encoded array"),
        (collections.OrderedDict(a=1), "holds a OrderedDict"),
    ],
)
def test_what_would_come_back_as_something_else_is_pickled_or_refused(value: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        _values.dumps(value, allow_pickle=False)
    data = _values.dumps(value, allow_pickle=True)
    assert type(_values.loads(data, allow_pickle=True)) is type(value)
    with pytest.raises(PermissionDenied, match="is pickled"):
        _values.loads(data, allow_pickle=False)


class _Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("what came from a server was run",))


@pytest.mark.parametrize("kind", [b"K", b"", b"P", b"\x80"])
def test_pickles_of_others_are_not_run(kind: bytes) -> None:
    with pytest.raises((PermissionDenied, InvalidArgument)):
        _values.loads(kind + pickle.dumps(_Trap()), allow_pickle=False)


@settings(deadline=None)
@given(st.data())
def test_malformed_bytes_are_an_error(data: Any) -> None:
    """Whatever is cut off, added or changed: a value, or InvalidArgument."""
    good = _values.dumps({"a": torch.arange(5), "b": [1.5, numpy.ones(3)]}, False)
    cut = data.draw(st.integers(0, len(good) - 1))
    with pytest.raises((InvalidArgument, PermissionDenied)):
        _values.loads(good[:cut], False)
    with pytest.raises(InvalidArgument):
        _values.loads(good + data.draw(st.binary(min_size=1)), False)
    changed = bytearray(good)
    changed[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(InvalidArgument, PermissionDenied):
        _values.loads(bytes(changed), False)
