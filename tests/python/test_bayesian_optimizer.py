"""The search for parameters, and what the service and its clients tell each other."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from pelton.bagua_define import (
    BaguaCoreTelemetrySpan,
    BaguaHyperparameter,
    TensorDeclaration,
    TensorDtype,
    get_tensor_declaration_bytes,
)
from pelton.errors import InvalidArgument
from pelton.service.bayesian_optimizer import BayesianOptimizer, BoolParam, FloatParam, IntParam, Param
from pelton.torch_api.utils import to_bagua_datatype
from spawn import environment

OPTIMUM = 618


def declaration() -> dict[str, Param]:
    return {"size": IntParam(0, (0, 1000)), "flag": BoolParam(False)}


def score(params: dict[str, Any]) -> float:
    """Smooth in the int, highest at the optimum with the flag set."""
    return -float(((params["size"] - OPTIMUM) / 100) ** 2) + (2.0 if params["flag"] else 0.0)


def proposals(optimizer: BayesianOptimizer, count: int) -> list[dict[str, Any]]:
    asked = []
    for _ in range(count):
        params = optimizer.ask()
        optimizer.tell(params, score(params))
        asked.append(params)
    return asked


def test_the_highest_score_is_found_in_few_asks() -> None:
    asked = proposals(BayesianOptimizer(declaration(), n_initial_points=10), 24)
    best = max(asked, key=score)
    assert best["flag"] is True
    assert abs(best["size"] - OPTIMUM) <= 5


def test_proposals_repeat_for_the_same_seed_and_begin_with_haltons_points() -> None:
    first, second = (proposals(BayesianOptimizer(declaration(), random_state=3), 22) for _ in range(2))
    assert first == second
    # Van der Corput's sequences of the bases 2 and 3 spread the points: every quarter of the range gets its share.
    sizes = [params["size"] for params in first[:20]]
    assert all(4 <= sum(low <= size < low + 250 for size in sizes) <= 6 for low in (0, 250, 500, 750))
    assert {params["flag"] for params in first[:20]} == {False, True}


def test_a_real_parameter_is_searched_within_its_bounds() -> None:
    optimizer = BayesianOptimizer({"x": FloatParam(0.5, (0.25, 4.0))}, n_initial_points=6)
    best = -math.inf
    for _ in range(14):
        x = optimizer.ask()["x"]
        assert isinstance(x, float) and 0.25 <= x <= 4.0
        best = max(best, -((x - 3.0) ** 2))
        optimizer.tell({"x": x}, -((x - 3.0) ** 2))
    assert best > -0.05


def test_a_space_that_is_exhausted_and_scores_that_are_all_alike_do_no_harm() -> None:
    optimizer = BayesianOptimizer({"a": BoolParam(True), "b": BoolParam(True)}, n_initial_points=4)
    seen = set()
    for _ in range(8):
        params = optimizer.ask()
        seen.add((params["a"], params["b"]))
        optimizer.tell(params, 1.0)
    assert seen == set(itertools.product((False, True), repeat=2))


def test_what_was_not_proposed_may_be_told() -> None:
    optimizer = BayesianOptimizer(declaration(), n_initial_points=1)
    optimizer.tell({"size": 7, "flag": True, "another": "ignored"}, 3.0)
    assert 0 <= optimizer.ask()["size"] <= 1000


@pytest.mark.parametrize(
    ("params", "points", "text"),
    [
        ({"size": 7}, 1.0, "lacks the parameter 'flag'"),
        ({"size": 1001, "flag": False}, 1.0, "parameter 'size': 1001 is not between 0 and 1000"),
        ({"size": 7, "flag": False}, math.nan, "must be finite"),
    ],
)
def test_a_wrong_score_is_refused(params: dict[str, Any], points: float, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        BayesianOptimizer(declaration()).tell(params, points)


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="the least and the greatest"):
        IntParam(3, (5, 1))
    with pytest.raises(InvalidArgument, match="val=9: must be between 1 and 5"):
        IntParam(9, (1, 5))
    with pytest.raises(InvalidArgument, match="at least one parameter"):
        BayesianOptimizer({})
    with pytest.raises(InvalidArgument, match="n_initial_points=0"):
        BayesianOptimizer(declaration(), n_initial_points=0)


def test_bytes_are_those_of_torch_for_every_dtype_that_has_a_name() -> None:
    dtypes = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    names = {}
    for dtype in dtypes:
        try:
            names[to_bagua_datatype(dtype)] = dtype
        except InvalidArgument:
            continue
    assert set(names) == {dtype.value for dtype in TensorDtype}
    for name, dtype in names.items():
        tensor: TensorDeclaration = {"name": "t", "num_elements": 6, "dtype": TensorDtype(name)}
        assert get_tensor_declaration_bytes(tensor) == 6 * torch.empty(0, dtype=dtype).element_size()


def test_hyperparameters_are_updated_all_at_once_or_not_at_all() -> None:
    tensor = {"name": "w", "num_elements": 4, "dtype": "i64"}
    hyperparameters = BaguaHyperparameter()
    changed = hyperparameters.update({"buckets": [[tensor]], "bucket_size": 1024, "unknown": 1})
    assert changed is hyperparameters
    assert hyperparameters.dict() == {"buckets": [[tensor]], "bucket_size": 1024, "is_hierarchical_reduce": False}
    with pytest.raises(InvalidArgument, match="is_hierarchical_reduce=1: must be a bool"):
        hyperparameters.update({"bucket_size": 2, "is_hierarchical_reduce": 1})
    assert hyperparameters.bucket_size == 1024


@pytest.mark.parametrize(
    ("buckets", "text"),
    [
        ("ab", "must be a list of lists"),
        ([{}], r"buckets\[0\]: must be a list of tensor declarations"),
        ([[3]], r"buckets\[0\]\[0\]: must be a tensor declaration"),
        ([[{"name": "w"}]], r"buckets\[0\]\[0\]: lacks num_elements, dtype"),
        ([[{"name": 1, "num_elements": 1, "dtype": "f32"}]], "name=1: must be a text"),
        ([[{"name": "w", "num_elements": -1, "dtype": "f32"}]], "tensor 'w': num_elements=-1"),
        ([[{"name": "w", "num_elements": 1, "dtype": "f8"}]], "tensor 'w': dtype='f8': must be one of f32"),
    ],
)
def test_wrong_buckets_are_named(buckets: object, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        BaguaHyperparameter().update({"buckets": buckets})


def test_a_span_has_its_form_on_the_wire() -> None:
    span = BaguaCoreTelemetrySpan(trace_id=1, action="tensor_ready", tensor_name="w", start_time=2, end_time=3)
    assert span.dict() == {
        "trace_id": 1,
        "action": "tensor_ready",
        "tensor_name": "w",
        "start_time": 2,
        "end_time": 3,
    }


def test_a_missing_package_is_named_and_nothing_is_imported_before() -> None:
    program = """
import sys
import pelton.torch_api
import pelton.bagua_define
import pelton.service.bayesian_optimizer as search
assert not {"skopt", "flask", "requests", "sklearn"} & set(sys.modules)
sys.modules["skopt"] = None
try:
    search.BayesianOptimizer({"a": search.BoolParam(True)})
except ImportError as error:
    assert "pip install 'pelton[service]'" in str(error), error
else:
    raise SystemExit(1)
"""
    changes = {"PYTHONPATH": ":".join([environment()["PYTHONPATH"], *sys.path])}
    subprocess.run([sys.executable, "-c", program], env=environment(changes), check=True, timeout=300)
