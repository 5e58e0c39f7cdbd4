"""What a usual run leaves to others (tools/testing/turns.py)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.testing import turns

TESTS = Path(__file__).resolve().parents[1]


def test_every_slow_file_is_there() -> None:
    there = {path.stem for folder in ("python", "network") for path in (TESTS / folder).glob("test_*.py")}
    assert set(turns.SECONDS) - there == set()


def test_each_slow_file_is_left_out_in_all_turns_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(turns.VARIABLE, raising=False)
    assert turns.left_out() == set()
    left_out = []
    for turn in range(turns.COUNT):
        monkeypatch.setenv(turns.VARIABLE, str(turn))
        left_out += sorted(turns.left_out())
    assert sorted(left_out) == sorted([*turns.SECONDS] * (turns.COUNT - 1))


def test_the_turn_is_one_of_them() -> None:
    assert turns.current() in range(turns.COUNT)
    assert os.environ.get(turns.VARIABLE, "0") in map(str, range(turns.COUNT))
