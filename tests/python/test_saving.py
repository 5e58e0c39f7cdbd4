"""Checkpoints: what they hold, see cases/saving*.py; and ranks that end while they save."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import pytest
from pelton._training.checkpoint import _disk
from spawn import HERE, case_ids, check_case, run

MODULES = ("cases.saving", "cases.saving_experts", "cases.saving_failures", "cases.resharding")
CASES = [(module, *case) for module in MODULES for case in sorted(case_ids(module))]


@pytest.mark.parametrize(("module", "world_size", "name"), CASES)
def test_saving(module: str, world_size: int, name: str) -> None:
    check_case(module, world_size, name)


def test_what_a_failed_write_has_left_goes_to_no_other_file(tmp_path: Path) -> None:
    """Whoever keeps the error keeps the buffer, too; another file has the descriptor's number by the time both go."""

    def content(file: BinaryIO) -> None:
        file.write(b"of the checkpoint")
        raise OSError("no room")

    failures: list[OSError] = []
    try:
        _disk.write(str(tmp_path / "checkpoint"), content)
    except OSError as error:
        failures.append(error)
    with open(tmp_path / "log", "wb"):
        failures.pop()
    assert (tmp_path / "log").read_bytes() == b""


@pytest.mark.parametrize("number", ["new", "same"])
def test_a_rank_that_ends_at_any_operation_leaves_a_whole_checkpoint(number: str) -> None:
    """For each operation of each rank; see saving_main.py."""
    outcome = run([sys.executable, str(HERE / "saving_main.py"), number], 500)
    assert outcome.code == 0, outcome.output + outcome.errors
    assert "rank 0: " in outcome.output
    assert "rank 1: " in outcome.output
