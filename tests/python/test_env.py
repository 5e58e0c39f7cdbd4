"""The env functions and the safe encoding; no ranks needed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pelton import errors
from pelton._training._encoding import decode, encode
from pelton._training._store_meeting import Record, parse
from pelton.errors import InvalidArgument
from pelton.torch_api import env

DEFAULTS: list[tuple[str, str | None, Any, str, Any]] = [
    ("get_rank", "RANK", 0, "3", 3),
    ("get_world_size", "WORLD_SIZE", 1, "4", 4),
    ("get_local_rank", "LOCAL_RANK", 0, "2", 2),
    ("get_local_size", "LOCAL_WORLD_SIZE", 1, "8", 8),
    ("get_node_rank", "NODE_RANK", 0, "1", 1),
    ("get_master_addr", "MASTER_ADDR", "127.0.0.1", "10.0.0.1", "10.0.0.1"),
    ("get_default_bucket_size", "BAGUA_DEFAULT_BUCKET_SIZE", 10485760, "100", 100),
    ("get_bagua_service_port", "BAGUA_SERVICE_PORT", -1, "29501", 29501),
    ("get_autotune_level", "BAGUA_AUTOTUNE", 0, "1", 1),
    ("get_autotune_max_samples", "BAGUA_AUTOTUNE_MAX_SAMPLES", 60, "7", 7),
    ("get_autotune_sampling_confidence_time_s", "BAGUA_AUTOTUNE_SAMPLING_CONFIDENCE_TIME_S", 5.0, "0.5", 0.5),
    ("get_autotune_warmup_time_s", "BAGUA_AUTOTUNE_WARMUP_TIME_S", 30.0, "1", 1.0),
    ("get_autotune_server_wait_time", "BAGUA_AUTOTUNE_SERVER_WAIT_TIME", 300, "5", 30),
    ("get_is_output_autotune_log", "BAGUA_IS_OUTPUT_AUTOTUNE_LOG", False, "1", True),
    ("is_report_metrics_switch_on", "BAGUA_REPORT_METRICS", False, "1", True),
]


@pytest.mark.parametrize(("function", "variable", "default", "text", "value"), DEFAULTS)
def test_variables(
    monkeypatch: pytest.MonkeyPatch, function: str, variable: str, default: Any, text: str, value: Any
) -> None:
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", variable):
        monkeypatch.delenv(name, raising=False)
    assert getattr(env, function)() == default
    monkeypatch.setenv(variable, text)
    assert getattr(env, function)() == value


@pytest.mark.parametrize(
    ("function", "variable", "text", "value"),
    [(function, variable, text, value) for function, variable, _, text, value in DEFAULTS if "BAGUA_" in str(variable)],
)
def test_baguas_variables_have_a_second_name(
    monkeypatch: pytest.MonkeyPatch, function: str, variable: str, text: str, value: Any
) -> None:
    second = variable.replace("BAGUA_", "PELTON_")
    monkeypatch.setenv(variable, "17")
    monkeypatch.setenv(second, text)
    assert getattr(env, function)() == value
    monkeypatch.setenv(second, "many")
    with pytest.raises(InvalidArgument, match=f"{second}='many'"):
        getattr(env, function)()


@pytest.mark.parametrize("variable", ["RANK", "BAGUA_AUTOTUNE_WARMUP_TIME_S", "BAGUA_REPORT_METRICS"])
def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "many")
    function = {
        "RANK": env.get_rank,
        "BAGUA_AUTOTUNE_WARMUP_TIME_S": env.get_autotune_warmup_time_s,
        "BAGUA_REPORT_METRICS": env.is_report_metrics_switch_on,
    }[variable]
    with pytest.raises(InvalidArgument, match=f"{variable}='many'"):
        function()


def test_node_rank_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "7")
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
        monkeypatch.setenv(name, "2")
    assert env.get_node_rank() == 2


def test_the_log_switch_understands_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAGUA_IS_OUTPUT_AUTOTUNE_LOG", "0")
    assert env.get_is_output_autotune_log() is False


def test_a_free_port_can_be_bound() -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", env.find_free_network_port()))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


def _same(left: Any, right: Any) -> bool:
    """Equal, and of the same types throughout: (1,) is not [1], True is not 1."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return bool(left == right) and (not isinstance(left, float) or math.copysign(1, left) == math.copysign(1, right))


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    assert _same(decode(json.loads(json.dumps(encode(value, [], "value"))), None, []), value)


def test_tensors_become_places_in_a_list() -> None:
    tensors: list[torch.Tensor] = []
    value = {"a": torch.ones(2, 3), "b": [torch.zeros((), dtype=torch.int64)], "c": float("nan")}
    form = json.loads(json.dumps(encode(value, tensors, "value")))
    assert [t.shape for t in tensors] == [(2, 3), ()]
    kept = torch.zeros(2, 3)
    received: list[torch.Tensor] = []
    back = decode(form, {"a": kept, "b": [torch.zeros(5)]}, received)
    assert back["a"] is kept
    assert received[0] is kept
    assert received[1].dtype == torch.int64
    assert math.isnan(back["c"])


@pytest.mark.parametrize("value", [object(), len, torch.eye(2).to_sparse()])
def test_what_has_no_safe_form_is_named(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"group\['x'\]\[1\]"):
        encode({"x": [0, value]}, [], "group")


@pytest.mark.parametrize(
    "form",
    [
        {"pickle": "x"},
        {"tensor": ["torch.nn", [1]]},
        {"tensor": ["torch.float32", [-1]]},
        {"tensor": ["torch.float32", [1 << 30, 1 << 30]]},
        {"float": "0x1", "tuple": []},
        {},
    ],
)
def test_malformed_values_are_refused(form: Any) -> None:
    with pytest.raises(InvalidArgument):
        decode(form, None, [])


GOOD = {"address": "127.0.0.1:29500", "token": "0123456789abcdef", "job": "job-0-1"}


def test_a_published_record_is_read() -> None:
    assert parse(json.dumps(GOOD).encode()) == Record(**GOOD)
    assert parse(json.dumps({**GOOD, "address": "[::1]:80"}).encode()).address == "[::1]:80"


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x80\x04\x95",
        b"[" * 4000,
        b"[]",
        b"{}",
        b"x" * 5000,
        json.dumps({**GOOD, "address": "127.0.0.1"}).encode(),
        json.dumps({**GOOD, "address": "$(reboot):1"}).encode(),
        json.dumps({**GOOD, "token": "short"}).encode(),
        json.dumps({**GOOD, "token": 5}).encode(),
        json.dumps({**GOOD, "job": "a\nb"}).encode(),
    ],
)
def test_a_malformed_record_is_refused(record: bytes) -> None:
    with pytest.raises(InvalidArgument, match="malformed"):
        parse(record)


def test_errors_are_what_python_would_expect() -> None:
    for code, kinds in (
        (3, (errors.InvalidArgument, ValueError)),
        (4, (errors.DeadlineExceeded, TimeoutError)),
        (12, (errors.Unsupported, NotImplementedError)),
        (14, (errors.PeerLost, ConnectionError)),
        (16, (errors.PermissionDenied, PermissionError)),
        (99, (errors.PeltonError, RuntimeError)),
    ):
        error = errors.from_status(code, "rank 1: what happened")
        assert isinstance(error, (*kinds[:1], errors.PeltonError))
        assert all(isinstance(error, kind) for kind in kinds)
        assert str(error) == "rank 1: what happened"
