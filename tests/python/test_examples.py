"""Each example of examples/python runs as its first lines say, and learns."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import pytest
from spawn import HERE, Outcome, launcher, run

FOLDER = HERE.parents[1] / "examples" / "python"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("characters", "digits"))
LEAST_ACCURACY = 0.9  # guessing gives 0.1
MOST_BITS = 3.0  # a letter; guessing takes 6.5


@functools.cache
def outcome_of(name: str) -> Outcome:
    outcome = run(launcher(2, Path(FOLDER, f"{name}.py")), 240)
    assert outcome.code == 0, outcome.errors
    return outcome


def accuracy_of(name: str) -> float:
    """That of the worse rank."""
    outcome = outcome_of(name)
    reached = re.findall(r"^\[rank \d\] rank \d: accuracy (\d\.\d+)$", outcome.output, re.MULTILINE)
    assert len(reached) == 2, outcome.output
    return min(map(float, reached))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_learns(name: str) -> None:
    assert f"pelton run -np 2 examples/python/{name}.py" in Path(FOLDER, f"{name}.py").read_text()
    assert accuracy_of(name) >= LEAST_ACCURACY


def test_the_profile_shows_buckets() -> None:
    row = r"(\d+) times, \d+ us each: pelton:bucket \d+ \(.*\), .* bytes, (waits|runs)$"
    shown = re.findall(row, outcome_of("profiled").output, re.MULTILINE)
    assert sorted(shown) == [("10", "runs"), ("10", "waits")]


def test_the_writer_learns() -> None:
    outcome = run(launcher(2, Path(FOLDER, "characters.py")), 240)
    assert outcome.code == 0, outcome.errors
    bits = re.findall(r"^\[rank \d\] rank \d: (\d\.\d+) bits a letter", outcome.output, re.MULTILINE)
    assert len(bits) == 2 and all(float(each) <= MOST_BITS for each in bits), outcome.output


def test_experts_are_no_worse_than_the_dense_net() -> None:
    """After equally many epochs with the same optimizer."""
    assert accuracy_of("experts") >= accuracy_of("gradients") - 0.005


def test_local_steps_and_codecs_spare_a_slow_link() -> None:
    """A short form of examples/slow_link; bytes do not depend on how busy this machine is, and times do."""
    script = FOLDER.parent / "slow_link" / "compare.py"
    ways = ("allreduce", "bytes", "local steps", "local steps in 4 bits")
    command = [sys.executable, str(script), "--rate", "10gbit", "--epochs", "2", "--ways", *ways]
    outcome = run(command, 280)
    if outcome.code == 3:
        pytest.skip(outcome.errors.splitlines()[-1])
    assert outcome.code == 0, outcome.errors
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in outcome.output.splitlines()[2:]]
    assert len(rows) == len(ways), outcome.output
    megabytes = [float(row[3]) for row in rows]
    assert megabytes[0] == pytest.approx(4.5, rel=0.05)  # each rank sends half of a bucket, twice
    assert megabytes[1] == pytest.approx(megabytes[0] / 4, rel=0.05)
    assert megabytes[2] < megabytes[0] / 7
    assert megabytes[3] < megabytes[2] / 6
    assert all(float(row[4]) >= LEAST_ACCURACY for row in rows), outcome.output


def test_every_family_has_one() -> None:
    assert len(EXAMPLES) == 13
