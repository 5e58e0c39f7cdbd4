"""Bagua's synthetic benchmark: its lines, and what it refuses."""

from __future__ import annotations

import os
import re
import sys

import pytest
from pelton.script import bagua_sys_perf
from spawn import HERE, environment, launcher, run

_STANDINS = str(HERE / "standins")
_FEW = ["--batch-size=2", "--num-warmup-batches=1", "--num-batches-per-iter=2", "--num-iters=3", "--no-cuda"]
_LINES = (
    r"Model: resnet18",
    r"Batch size: 2",
    r"Number of CPUs: 2",
    r"Running warmup\.\.\.",
    r"Running benchmark\.\.\.",
    r"Iter #0: (\d+\.\d) img/sec CPU",
    r"Iter #1: (\d+\.\d) img/sec CPU",
    r"Iter #2: (\d+\.\d) img/sec CPU",
    r"Img/sec per CPU: (\d+\.\d) \+-(\d+\.\d)",
    r"Total img/sec on 2 CPU\(s\): (\d+\.\d) \+-(\d+\.\d)",
)


def test_its_lines_are_baguas_and_its_figures_agree() -> None:
    paths = os.pathsep.join([_STANDINS, environment()["PYTHONPATH"]])
    words = ["-m", "pelton.script.bagua_sys_perf", "--model=resnet18", *_FEW]
    outcome = run(launcher(2, *words), 180, {"PYTHONPATH": paths})
    assert outcome.code == 0, outcome.errors
    lines = outcome.output.splitlines()
    assert len(lines) == len(_LINES), lines
    found = [re.fullmatch(r"\[rank 0\] " + pattern, line) for pattern, line in zip(_LINES, lines)]
    assert all(found), lines
    speeds = [float(match[1]) for match in found[5:8] if match]
    own, total = found[8], found[9]
    assert own
    assert total
    assert float(total[1]) == pytest.approx(sum(speeds) / 3, abs=0.2)
    assert float(total[1]) == pytest.approx(2 * float(own[1]), abs=0.2)
    assert float(total[2]) == pytest.approx(2 * float(own[2]), abs=0.2)
    spread = 1.96 * (sum((speed - sum(speeds) / 3) ** 2 for speed in speeds) / 3) ** 0.5
    assert float(total[2]) == pytest.approx(spread, abs=0.5)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--fp16-allreduce"], "--algorithm chooses what is sent"),
        (["--use-adasum"], "--algorithm chooses what is sent"),
        (["--num-iters=0"], "must be at least 1"),
        (["--model=resnet9999"], "--model resnet9999: is not one of torchvision.models"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(_STANDINS)
    monkeypatch.setattr(sys, "argv", ["bagua_sys_perf", *words])
    with pytest.raises(SystemExit) as ended:
        bagua_sys_perf.main()
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_torchvision_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    monkeypatch.setattr(sys, "argv", ["bagua_sys_perf"])
    with pytest.raises(SystemExit):
        bagua_sys_perf.main()
    assert "pip install torchvision" in capsys.readouterr().err
