"""The tuning service over real HTTP on loopback, and what its clients are told when it is away."""

from __future__ import annotations

import contextlib
import csv
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pelton.bagua_define import BaguaCoreTelemetrySpan, BaguaHyperparameter, TensorDeclaration, TensorDtype
from pelton.bagua_define import get_tensor_declaration_bytes as bytes_of
from pelton.errors import DeadlineExceeded, InvalidArgument, PeerLost
from pelton.service import AutotuneClient, AutotuneService
from pelton.service._tuning import WITHOUT_BUCKETS, in_order, split_bucket_by_bucket_size
from pelton.service.autotune_service import serve
from spawn import environment

BUSY_S = 60.0  # what a machine that does other things may add to an answer
MODEL = "net"


class Clock:
    """A clock that moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tensor(name: str, elements: int = 1024, dtype: TensorDtype = TensorDtype.F32) -> TensorDeclaration:
    return {"name": name, "num_elements": elements, "dtype": dtype}


TENSORS = [tensor(f"t{i}") for i in range(8)]


class Job:
    """Ranks that report and ask in turns; each uses what it was told."""

    def __init__(self, client: AutotuneClient, clock: Clock, world_size: int) -> None:
        self.client, self.clock = client, clock
        self.answers: list[dict[str, Any]] = [{} for _ in range(world_size)]
        self._is_completed = False

    def register(self, tensors: list[TensorDeclaration] = TENSORS, whether_to_bucket: bool = True) -> None:
        for rank in range(len(self.answers)):
            response = self.client.register_tensors(MODEL, tensors, whether_to_bucket)
            assert response.status_code == 200, response.text
            self.answers[rank] = response.json()["recommended_hyperparameters"]

    def ask(self, rank: int, train_iter: int) -> None:
        response = self.client.ask_hyperparameters(MODEL, rank, train_iter)
        assert response.status_code == 200, response.text
        self.answers[rank] = response.json()["recommended_hyperparameters"]
        self._is_completed = response.json()["is_autotune_completed"]

    def step(self, train_iter: int, seconds: float = 5.0) -> dict[str, Any]:
        """All ranks train, report and ask, in another order each time; returns what all of them were told."""
        self.clock.now += seconds
        count = len(self.answers)
        for rank in ((train_iter + i) % count for i in range(count)):
            self.report(rank, train_iter)
            self.ask(rank, train_iter)
        assert all(answer == self.answers[0] for answer in self.answers)
        return self.answers[0]

    def is_completed(self) -> bool:
        """What the last answer said."""
        return self._is_completed

    def report(self, rank: int, train_iter: int) -> None:
        used = self.answers[rank]
        response = self.client.report_metrics(MODEL, rank, train_iter, used, speed(used))
        assert response.status_code == 200, response.text


def speed(hyperparameters: dict[str, Any]) -> float:
    """Best at 64 KiB with the hierarchy."""
    distance = abs(math.log2(hyperparameters["bucket_size"]) - 16)
    return 10.0 - distance + (0.5 if hyperparameters["is_hierarchical_reduce"] else 0.0)


@contextlib.contextmanager
def job(world_size: int = 2, **options: Any) -> Iterator[Job]:
    clock = Clock()
    options = {"autotune_level": 1, "warmup_time_s": 0, **options}
    with serve(AutotuneService(world_size, clock=clock, **options)) as port:
        yield Job(AutotuneClient("127.0.0.1", port), clock, world_size)


def names(hyperparameters: dict[str, Any]) -> list[list[str]]:
    return [[each["name"] for each in bucket] for bucket in hyperparameters["buckets"]]


def test_models_begin_with_buckets_of_the_default_size() -> None:
    with job(default_bucket_size=8192) as ranks:
        ranks.register()
        assert ranks.answers[0]["bucket_size"] == 8192
        assert ranks.answers[0]["is_hierarchical_reduce"] is False
        assert names(ranks.answers[1]) == [["t0", "t1"], ["t2", "t3"], ["t4", "t5"], ["t6", "t7"]]


def test_at_level_0_nothing_changes() -> None:
    with job(autotune_level=0) as ranks:
        ranks.register()
        before = ranks.answers[0]
        assert all(ranks.step(i) == before for i in range(1, 5))
        assert not ranks.is_completed()


def test_the_fastest_hyperparameters_that_were_tried_win_on_all_ranks() -> None:
    with job(world_size=3, max_samples=6) as ranks:
        ranks.register()
        tried = [ranks.answers[0]]
        for i in range(1, 20):
            tried.append(ranks.step(i))
            if ranks.is_completed():
                break
        # Two rounds pass first: one until every rank has asked, one to warm up. Six proposals are in force, one each.
        assert len(tried) == 1 + 2 + 7
        proposed = {(used["bucket_size"], used["is_hierarchical_reduce"]) for used in tried}
        assert len(proposed) == 7
        assert tried[-1] == max(tried, key=speed)
        assert ranks.step(30) == ranks.step(31) == tried[-1]
        assert {name for bucket in names(tried[-1]) for name in bucket} == {each["name"] for each in TENSORS}


def test_nothing_is_sampled_while_warming_up() -> None:
    with job(warmup_time_s=30, sampling_confidence_time_s=5) as ranks:
        ranks.register()
        before = ranks.answers[0]
        assert all(ranks.step(i, seconds=9.0) == before for i in range(1, 4))  # 27 s
        assert ranks.step(4, seconds=4.0) == before  # 31 s, but its confidence time begins now
        assert ranks.step(5, seconds=5.0) != before


def test_hyperparameters_stay_for_the_confidence_time() -> None:
    with job(sampling_confidence_time_s=5) as ranks:
        ranks.register()
        before = [ranks.step(i) for i in (1, 2)][-1]
        first = ranks.step(3)
        assert first != before
        assert ranks.step(4, seconds=3.0) == first
        assert ranks.step(5, seconds=1.9) == first
        assert ranks.step(6, seconds=0.1) != first


def test_nothing_changes_before_every_rank_has_the_same_answer() -> None:
    with job(world_size=2, sampling_confidence_time_s=0) as ranks:
        ranks.register()
        before = [ranks.step(i) for i in (1, 2)][-1]
        ranks.report(0, 3)
        ranks.ask(0, 3)
        first = ranks.answers[0]
        assert first != before
        ranks.report(0, 4)
        ranks.ask(0, 4)  # rank 1 has not asked at 3
        assert ranks.answers[0] == first
        ranks.ask(1, 3)
        ranks.ask(1, 4)
        assert ranks.answers[1] == first
        assert ranks.step(5) != first


def test_ranks_that_ask_at_their_own_pace_get_the_same_answer_at_an_iteration() -> None:
    """Each rank in a thread of its own, with a client of its own; some run ahead by chance."""
    with job(world_size=3, sampling_confidence_time_s=0) as ranks:
        ranks.register()
        port = int(ranks.client.autotune_service_addr.rsplit(":", 1)[1])

        def train(rank: int) -> list[dict[str, Any]]:
            alone = Job(AutotuneClient("127.0.0.1", port), ranks.clock, 3)
            alone.answers[rank] = ranks.answers[rank]
            told = []
            for i in range(1, 16):
                alone.report(rank, i)
                alone.ask(rank, i)
                told.append(alone.answers[rank])
            return told

        with ThreadPoolExecutor(3) as pool:
            first, *others = pool.map(train, range(3))
        assert all(told == first for told in others)


def test_a_question_that_is_repeated_gets_the_same_answer() -> None:
    with job(sampling_confidence_time_s=0) as ranks:
        ranks.register()
        for i in (1, 2, 3):
            answer = ranks.step(i)
        fresh = ranks.client.report_metrics(MODEL, 0, 4, answer, 1.0)
        assert fresh.status_code == 200
        ranks.ask(0, 3)
        ranks.ask(1, 3)
        assert ranks.answers == [answer, answer]


def test_a_speed_that_belongs_to_two_plans_is_no_sample() -> None:
    with job(sampling_confidence_time_s=0) as ranks:
        ranks.register()
        before = [ranks.step(i) for i in (1, 2)][-1]
        kept = ranks.step(3)
        ranks.answers[1] = before
        for rank in (0, 1):
            ranks.report(rank, 4)
        for i in (4, 5, 6):
            for rank in (0, 1):
                ranks.ask(rank, i)
        assert ranks.answers == [kept, kept]
        assert ranks.step(7) != kept


def test_ranks_that_use_different_hyperparameters_stop_the_search(caplog: pytest.LogCaptureFixture) -> None:
    with job(sampling_confidence_time_s=0) as ranks, caplog.at_level(logging.WARNING, logger="pelton"):
        ranks.register()
        before = [ranks.step(i) for i in (1, 2)][-1]
        assert ranks.step(3) != before
        kept = ranks.answers[0]
        ranks.answers[1] = before  # rank 1 has not taken over what it was told
        for rank in (0, 1):
            ranks.report(rank, 4)
        ranks.ask(0, 4)
        assert ranks.answers[0] == kept
        ranks.ask(1, 4)
        ranks.step(5)
        assert ranks.answers == [kept, kept]
        assert "rank 1 reported other hyperparameters" in caplog.text
        assert ranks.step(6) != kept


def test_nothing_is_asked_for_without_a_report() -> None:
    with job(sampling_confidence_time_s=0) as ranks:
        ranks.register()
        before = ranks.answers[0]
        for i in range(1, 5):
            for rank in (0, 1):
                ranks.ask(rank, i)
        assert ranks.answers == [before, before]


def test_the_order_of_spans_is_the_order_in_new_buckets() -> None:
    with job(sampling_confidence_time_s=0) as ranks:
        ranks.register()
        spans = [
            BaguaCoreTelemetrySpan(1, "tensor_ready", "t2", 30, 31),
            BaguaCoreTelemetrySpan(1, "tensor_ready", "t7", 10, 11),
            BaguaCoreTelemetrySpan(1, "another", "t0", 1, 2),
        ]
        assert ranks.client.report_tensor_execution_order(spans).status_code == 200
        later = [{**spans[0].dict(), "tensor_name": "t5", "start_time": 5}, {**spans[0].dict(), "start_time": 1}]
        assert ranks.client.report_tensor_execution_order(later).status_code == 200
        for i in (1, 2, 3):
            answer = ranks.step(i)
        flat = [name for bucket in names(answer) for name in bucket]
        assert flat == ["t7", "t2", "t5", "t0", "t1", "t3", "t4", "t6"]


def test_spans_of_unknown_tensors_take_no_more_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutotuneService, "MAX_TRACE_INFO", 3)
    service = AutotuneService(1)
    with serve(service) as port:
        client = AutotuneClient("127.0.0.1", port)
        client.register_tensors(MODEL, TENSORS)
        ready = ["x0", "x1", "x2", "x3", "t1", "x4", "t0"]
        spans = [BaguaCoreTelemetrySpan(1, "tensor_ready", name, i, i) for i, name in enumerate(ready)]
        assert client.report_tensor_execution_order(spans).status_code == 200
    assert list(service._order) == ["x0", "x1", "x2", "t1", "t0"]


def test_samples_are_logged_in_baguas_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with job(max_samples=3, is_output_autotune_log=True) as ranks:
        ranks.register()
        used = [ranks.step(i) for i in range(1, 6)]
    (log,) = tmp_path.glob("bagua_autotune_*.log")
    header, *rows = csv.reader(log.read_text().splitlines())
    assert header == ["bucket_size_2p", "is_hierarchical_reduce", "score", "train_iter"]
    assert [row[3] for row in rows] == ["3", "4", "5"]
    for row, before in zip(rows, used[1:]):
        assert [row[0], row[1]] == [str(int(math.log2(before["bucket_size"]))), str(before["is_hierarchical_reduce"])]
        assert float(row[2]) == speed(before)


def test_tensors_that_are_not_to_be_split_stay_together() -> None:
    tensors = [*TENSORS, tensor("counter", 1, TensorDtype.I64)]
    with job(max_samples=3) as ranks:
        ranks.register(tensors, whether_to_bucket=False)
        together = [["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7"], ["counter"]]
        hierarchies = set()
        for i in range(1, 7):
            answer = ranks.step(i)
            assert names(answer) == together
            assert answer["bucket_size"] == WITHOUT_BUCKETS
            hierarchies.add(answer["is_hierarchical_reduce"])
        assert ranks.is_completed()
        assert hierarchies == {False, True}


def test_a_result_stays_for_the_same_tensors_and_is_forgotten_for_others() -> None:
    with job(max_samples=2) as ranks:
        ranks.register()
        for i in range(1, 6):
            tuned = ranks.step(i)
        assert ranks.is_completed()
        ranks.register()
        assert ranks.answers[0] == tuned
        assert ranks.step(1) == tuned and ranks.is_completed()
        ranks.register(TENSORS[:4])
        assert ranks.answers[0]["bucket_size"] == 10 << 20
        ranks.step(1)
        assert not ranks.is_completed()
        ranks.step(2)
        assert ranks.step(3) != tuned  # iterations count from 1 again
        assert ranks.answers[0]["bucket_size"] != 10 << 20


def test_a_late_registration_gives_no_rank_an_answer_of_its_own() -> None:
    with job(sampling_confidence_time_s=0) as ranks:
        ranks.register()
        for i in range(1, 5):
            ranks.step(i)
        for rank in (0, 1):  # as ranks do that change their algorithm in the middle
            ranks.answers[rank] = ranks.client.register_tensors(MODEL, TENSORS).json()["recommended_hyperparameters"]
            ranks.report(rank, 5)
            ranks.ask(rank, 5)
        assert ranks.answers[0] == ranks.answers[1]
        assert ranks.answers[0]["bucket_size"] == 10 << 20


def test_calls_about_an_unknown_model_are_405() -> None:
    with job() as ranks:
        asked = ranks.client.ask_hyperparameters("other", 0, 1)
        reported = ranks.client.report_metrics("other", 0, 1, BaguaHyperparameter(), 1.0)
    assert (asked.status_code, reported.status_code) == (405, 405)
    assert "tensors of model 'other'; call register_tensors first" in asked.text


USED = {"buckets": [TENSORS], "bucket_size": 1024}
REPORT = {"model_name": MODEL, "rank": 0, "train_iter": 1, "speed": 1.0, "hyperparameters": USED}
SPAN = BaguaCoreTelemetrySpan(1, "tensor_ready", "t0", 1, 2).dict()


@pytest.mark.parametrize(
    ("call", "body", "text"),
    [
        ("register_tensors", [], "must be a JSON object"),
        ("register_tensors", {"tensor_list": []}, "field 'model_name'"),
        ("register_tensors", {"model_name": MODEL, "tensor_list": [{"name": "a"}]}, "lacks num_elements"),
        (
            "register_tensors",
            {"model_name": MODEL, "tensor_list": [TENSORS[0], TENSORS[0]], "whether_to_bucket": True},
            "several tensors are named 't0'",
        ),
        ("register_tensors", {"model_name": MODEL, "tensor_list": [], "whether_to_bucket": 1}, "must be bool, not 1"),
        ("ask_hyperparameters", {"model_name": MODEL, "rank": 2, "train_iter": 1}, "below the world size, 2"),
        ("ask_hyperparameters", {"model_name": MODEL, "rank": True, "train_iter": 1}, "field 'rank'"),
        ("report_metrics", {**REPORT, "speed": "fast"}, "field 'speed': must be int or float, not 'fast'"),
        ("report_metrics", {**REPORT, "speed": 10**400}, "field 'speed': is too large"),
        ("report_metrics", {**REPORT, "hyperparameters": {}}, "bucket_size=0: must be positive"),
        ("report_metrics", {**REPORT, "hyperparameters": {"bucket_size": 9}}, "have 0 tensors, which are not the 8"),
        ("report_tensor_execution_order", {"spans": [7]}, r"spans[0]: must be a JSON object"),
        ("report_tensor_execution_order", {"spans": [{**SPAN, "start_time": "x"}]}, "field 'start_time'"),
    ],
)
def test_a_wrong_request_is_answered_with_its_mistake(call: str, body: Any, text: str) -> None:
    with job() as ranks:
        ranks.register()
        response = ranks.client._post(call, body)
        assert response.status_code == 400
        assert text in response.text
        ranks.step(1)  # it serves on


def test_a_speed_that_is_no_number_is_refused_by_the_client() -> None:
    with pytest.raises(InvalidArgument, match="speed=nan of rank 1 at iteration 7"):
        AutotuneClient("127.0.0.1", 9).report_metrics(MODEL, 1, 7, USED, math.nan)


def test_a_service_that_is_away_is_an_error_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    client = AutotuneClient("127.0.0.1", port)
    began = time.monotonic()
    with pytest.raises(PeerLost, match=f"127.0.0.1:{port} was not reached in 4 attempts"):
        client.ask_hyperparameters(MODEL, 0, 1)
    assert client.health_check() is False
    assert pauses == [1.0, 1.0, 1.0]
    assert time.monotonic() - began < BUSY_S


def test_a_service_that_comes_late_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        pauses = []

        def start_at_the_second_pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                stack.enter_context(serve(AutotuneService(1), port))

        monkeypatch.setattr(time, "sleep", start_at_the_second_pause)
        assert AutotuneClient("127.0.0.1", port).register_tensors(MODEL, TENSORS).status_code == 200
        assert pauses == [1.0, 1.0]


def test_a_silent_service_is_an_error_in_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = AutotuneClient("127.0.0.1", silent.getsockname()[1], timeout_s=0.2)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"report_metrics: the tuning service at .* did not answer in time"):
            client.report_metrics(MODEL, 0, 1, USED, 1.0)
        assert client.health_check() is False
        assert time.monotonic() - began < BUSY_S


def test_no_proxy_of_the_environment_is_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with job() as ranks:
        assert ranks.client.health_check() is True


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidArgument, match=f"port={port}: cannot listen there"), serve(AutotuneService(1), port):
            raise AssertionError("it cannot be served there")


def test_it_listens_on_loopback_and_ends_with_its_block() -> None:
    with serve(AutotuneService(1)) as port, socket.create_server(("127.0.0.2", port)):
        assert AutotuneClient("127.0.0.1", port).health_check() is True  # or 127.0.0.2 would have been taken too
    assert AutotuneClient("127.0.0.1", port).health_check() is False


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="world_size=0"):
        AutotuneService(0)
    with pytest.raises(InvalidArgument, match="default_bucket_size=-1"):
        AutotuneService(1, default_bucket_size=-1)


def test_it_runs_as_a_program_of_its_own() -> None:
    changes = {"BAGUA_DEFAULT_BUCKET_SIZE": "4096", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-m", "pelton.service", "--world-size", "2"]
    with subprocess.Popen(program, env=environment(changes), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("tuning service at 127.0.0.1:"), line
            client = AutotuneClient("127.0.0.1", int(line.rsplit(":", 1)[1]))
            answer = client.register_tensors(MODEL, TENSORS).json()["recommended_hyperparameters"]
            assert names(answer) == [[each["name"]] for each in TENSORS]
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(BUSY_S) == 0


def test_missing_packages_are_named() -> None:
    program = """
import sys
from pelton.service import AutotuneClient, AutotuneService
assert not {"skopt", "flask", "requests"} & set(sys.modules)
for package, make in (
    ("requests", lambda: AutotuneClient("127.0.0.1", 1)),
    ("flask", lambda: AutotuneService(1)),
    ("skopt", lambda: AutotuneService(1, autotune_level=1)),
):
    sys.modules[package] = None
    try:
        make()
    except ImportError as error:
        assert f"package {package}" in str(error) and "pip install 'pelton[service]'" in str(error), error
        del sys.modules[package]
    else:
        raise SystemExit(1)
"""
    changes = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environment(changes), check=True, timeout=300)


tensor_lists = st.lists(st.tuples(st.integers(0, 5000), st.sampled_from(TensorDtype)), max_size=30).map(
    lambda pairs: [tensor(f"t{i}", count, dtype) for i, (count, dtype) in enumerate(pairs)]
)


@settings(deadline=None, max_examples=200)
@given(tensor_lists, st.integers(1, 20000))
def test_buckets_have_every_tensor_once_and_one_dtype_and_close_at_the_size(
    tensors: list[TensorDeclaration], size: int
) -> None:
    buckets = split_bucket_by_bucket_size(tensors, size)
    flat = [each for bucket in buckets for each in bucket]
    assert sorted(flat, key=lambda t: int(t["name"][1:])) == tensors
    for bucket, following in zip(buckets, [*buckets[1:], None]):
        assert len({each["dtype"] for each in bucket}) == 1
        filled = sum(map(bytes_of, bucket))
        assert filled - bytes_of(bucket[-1]) < size  # it was not full before its last tensor
        is_last_of_dtype = following is None or following[0]["dtype"] != bucket[0]["dtype"]
        assert filled >= size or is_last_of_dtype
        assert [int(each["name"][1:]) for each in bucket] == sorted(int(each["name"][1:]) for each in bucket)


def test_dtypes_follow_each_other_as_in_bagua() -> None:
    dtypes = [TensorDtype.U8, TensorDtype.F32, TensorDtype.F16]
    buckets = split_bucket_by_bucket_size([tensor(dtype.value, 1, dtype) for dtype in dtypes], 1 << 20)
    assert [[each["name"] for each in bucket] for bucket in buckets] == [["f16"], ["f32"], ["u8"]]


@settings(deadline=None)
@given(tensor_lists, st.randoms(use_true_random=False))
def test_an_order_of_some_tensors_puts_the_others_last(tensors: list[TensorDeclaration], random: Any) -> None:
    known = [each["name"] for each in tensors if random.random() < 0.5]
    random.shuffle(known)
    ordered = [each["name"] for each in in_order(tensors, {name: 3 * i for i, name in enumerate(known)})]
    assert ordered == known + [each["name"] for each in tensors if each["name"] not in known]
