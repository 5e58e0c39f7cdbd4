"""Every Python block of docs/ runs."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
from blocks_main import CONTEXTS, RANKS, blocks
from spawn import HERE, Outcome, launcher, run

NAMES = [name for name, _ in blocks()]


@functools.cache
def job(ranks: int) -> tuple[list[list[str]], Outcome]:
    """The blocks that ran, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(launcher(ranks, HERE / "blocks_main.py", folder), 240)
        files = [Path(folder, f"rank{rank}.txt") for rank in range(ranks)]
        return [file.read_text().splitlines() if file.exists() else [] for file in files], outcome


def test_every_block_has_a_context() -> None:
    assert sorted(NAMES) == sorted(CONTEXTS)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str) -> None:
    ran, outcome = job(RANKS.get(name.split()[0], 2))
    assert all(name in own for own in ran), outcome.output + outcome.errors
