"""PELTON_REPLACE_GLOO=1: a script that asks torch.distributed for gloo, and never imports pelton, runs on Pelton."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from spawn import HERE, PACKAGES, Outcome, launcher, run

GLOO = "torch.distributed.distributed_c10d"


def _run(name: str, changes: Mapping[str, str]) -> tuple[list[dict[str, Any]], Outcome]:
    """What each of two ranks saw."""
    outcome = run(launcher(2, HERE / "gloo_script.py", name), 120, changes)
    assert outcome.code == 0, outcome.errors
    lines = [line[line.index("{") :] for line in outcome.output.splitlines() if "{" in line]
    return [json.loads(line) for line in lines], outcome


@pytest.mark.parametrize("name", ["gloo", "cpu:gloo"])
def test_a_script_for_gloo_runs_on_pelton_and_is_told_once(name: str) -> None:
    seen, outcome = _run(name, {"PELTON_REPLACE_GLOO": "1", "PELTON_QUIET": "0"})
    on_gloo, plain = _run(name, {"PELTON_QUIET": "0"})
    assert [one["name"] for one in seen] == [one["name"] for one in on_gloo]
    for one, other in zip(seen, on_gloo):
        assert one["backends"] == ["pelton._C"] * 2
        assert other["backends"] == [GLOO] * 2
        assert one["timeout_s"] == other["timeout_s"] == 50
        assert one["everyones"] == other["everyones"] == ["0", "1"]
        assert one["weights"] == pytest.approx(other["weights"], rel=1e-5)
        assert one["weights"] == seen[0]["weights"]
        assert one["of_cuda"] == ["pelton._C", GLOO]
    assert outcome.errors.count("process groups that ask for gloo run on Pelton") == 1
    assert "on Pelton" not in plain.errors


def test_what_cannot_be_loaded_is_left_to_gloo(tmp_path: Path) -> None:
    (tmp_path / "pelton").mkdir()
    (tmp_path / "pelton" / "__init__.py").write_text("raise ImportError('planted')\n")
    path = os.pathsep.join([str(tmp_path), str(HERE), str(PACKAGES)])
    seen, outcome = _run("gloo", {"PELTON_REPLACE_GLOO": "1", "PELTON_QUIET": "0", "PYTHONPATH": path})
    assert [one["backends"] for one in seen] == [[GLOO] * 2] * 2
    assert outcome.errors.count("pelton cannot be loaded (planted): process groups that ask for gloo run on gloo") == 1


def test_quiet_says_nothing() -> None:
    seen, outcome = _run("gloo", {"PELTON_REPLACE_GLOO": "1", "PELTON_QUIET": "1"})
    assert seen[0]["backends"] == ["pelton._C"] * 2
    assert "on Pelton" not in outcome.errors
