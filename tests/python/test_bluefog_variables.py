"""BlueFog's environment variables: each works, or is said to mean nothing here; and the pages that list them, and the
tests of what differs, tell the truth.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from pelton import _log
from pelton.bluefog import _variables
from pelton.errors import InvalidArgument
from pelton_run.bfrun import parsed
from spawn import HERE

ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "coming_from" / "bluefog.md"
# All that BlueFog reads, at run time and when it is built, as its documentation and source name them.
READ_BY_BLUEFOG = re.findall(
    r"\w+",
    """
LOG_LEVEL LOG_HIDE_TIME TIMELINE CYCLE_TIME FUSION_THRESHOLD NODES_PER_MACHINE MPI_THREAD_LEVEL OPS_ON_CPU WIN_ON_GPU
ALLREDUCE_BY_MPI BROADCAST_BY_MPI ALLGATHER_BY_MPI NEIGHBOR_ALLREDUCE_BY_MPI NEIGHBOR_ALLGATHER_BY_MPI WIN_OPS_BY_MPI
MAX_WIN_SENT_LENGTH NUM_FINALIZER_THREADS SLEEP_USEC_FOR_WIN_PASSIVE START_TIMEOUT
WITH_NCCL WITHOUT_PYTORCH WITH_TENSORFLOW WITHOUT_TENSORFLOW MPICXX_SHOW
CUDA_HOME CUDA_INCLUDE CUDA_LIB NCCL_HOME NCCL_INCLUDE NCCL_LIB NCCL_LINK
""",
)
WORK = {"BLUEFOG_LOG_LEVEL", "BLUEFOG_TIMELINE", "BLUEFOG_NODES_PER_MACHINE", "BLUEFOG_START_TIMEOUT"}


def _rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the page, without its head."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:] if not line.startswith("| ---")]


def test_every_variable_works_or_has_a_reason() -> None:
    everything = {f"BLUEFOG_{name}" for name in READ_BY_BLUEFOG}
    assert set(_variables.WITHOUT_MEANING) | WORK == everything
    assert not set(_variables.WITHOUT_MEANING) & WORK


def test_the_page_lists_every_variable_with_its_reason() -> None:
    told: dict[str, str] = {}
    for names, meaning in _rows("Environment variables"):
        for name in re.findall(r"`(BLUEFOG_\w+)`", names):
            assert name not in told, f"{name} stands twice"
            told[name] = meaning
    assert set(told) == set(_variables.WITHOUT_MEANING) | WORK
    for name, reason in _variables.WITHOUT_MEANING.items():
        assert told[name] == f"nothing, because {reason}", name
    assert all(not told[name].startswith("nothing") for name in WORK)


def test_those_that_work_are_read_and_the_others_are_not() -> None:
    sources = [*(ROOT / "torch_bindings").rglob("*.py")]
    code = "\n".join(path.read_text() for path in sources if path.name != "_variables.py")
    read = set(re.findall(r'"(BLUEFOG_[A-Z_]+)"', code)) | {"BLUEFOG_LOG_LEVEL"}
    assert read == WORK


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """What is told to people meanwhile."""
    lines: list[tuple[int, str]] = []
    monkeypatch.setattr(_log, "_callback", lambda level, line: lines.append((level, line)))
    return lines


def test_those_without_meaning_are_told_of_when_they_are_set(
    told: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _variables.tell_of_those_without_meaning()
    assert told == []
    monkeypatch.setenv("BLUEFOG_CYCLE_TIME", "0")
    _variables.tell_of_those_without_meaning()
    line = "bluefog: BLUEFOG_CYCLE_TIME is set and changes nothing, because no thread wakes up by a clock"
    assert told == [(logging.WARNING, line)]


@pytest.mark.parametrize(("text", "is_told"), [("debug", True), ("INFO", True), ("warning", False), ("fatal", False)])
def test_the_level_decides_what_is_told(
    text: str, is_told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_log, "_logger", logging.Logger("pelton", logging.WARNING))  # that nobody has configured
    monkeypatch.setenv("BLUEFOG_LOG_LEVEL", text)
    _variables.take_log_level()
    _log.tell(logging.INFO, "a line")
    assert ("pelton: a line" in capsys.readouterr().err) == is_told


def test_a_level_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLUEFOG_LOG_LEVEL", "loud")
    with pytest.raises(InvalidArgument, match="BLUEFOG_LOG_LEVEL='loud': must be one of trace, debug, info"):
        _variables.take_log_level()


def test_the_time_to_start_is_that_to_join(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PELTON_JOIN_TIMEOUT", raising=False)
    words = ["-np", "2", "python", "x.py"]
    assert "PELTON_JOIN_TIMEOUT" not in parsed(words).variables
    monkeypatch.setenv("BLUEFOG_START_TIMEOUT", "90")
    assert parsed(words).variables["PELTON_JOIN_TIMEOUT"] == "90"
    assert "PELTON_JOIN_TIMEOUT=90" in parsed(["-np", "2", "-H", "a,b", "python", "x.py"]).remote
    monkeypatch.setenv("PELTON_JOIN_TIMEOUT", "5")
    assert "PELTON_JOIN_TIMEOUT" not in parsed(words).variables
    monkeypatch.delenv("PELTON_JOIN_TIMEOUT")
    monkeypatch.setenv("BLUEFOG_START_TIMEOUT", "soon")
    with pytest.raises(SystemExit):
        parsed(words)
    assert "BLUEFOG_START_TIMEOUT='soon'" in capsys.readouterr().err


def _tests_of(path: Path) -> set[str]:
    """The names of a file's tests."""
    text = path.read_text()
    return {name for names in re.findall(r"^def (\w+)\(|^TEST\(\w+, (\w+)\)", text, re.MULTILINE) for name in names}


@pytest.mark.parametrize("heading", ["What differs, and why", "Windows", "Optimizers"])
def test_every_difference_names_tests_that_there_are(heading: str) -> None:
    python = [*(HERE / "cases").glob("bluefog_*.py"), HERE / "cases" / "faults.py", *HERE.glob("test_*.py")]
    known = set().union(*map(_tests_of, [*python, *(ROOT / "comm" / "window").glob("*_test.cc")]))
    rows = _rows(heading)
    assert len(rows) > 5
    for row in rows:
        named = re.findall(r"`(\w+)`", row[-1])
        assert len(row) == 4 and named, f"{row[0]!r} names no test"
        assert set(named) <= known, f"{row[0]!r}: there is no test {set(named) - known}"
