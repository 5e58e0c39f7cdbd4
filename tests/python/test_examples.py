"""Each example of examples/python runs as its first lines say, and learns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from spawn import HERE, launcher, run

FOLDER = HERE.parents[1] / "examples" / "python"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "digits")
LEAST_ACCURACY = 0.9  # guessing gives 0.1


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_learns(name: str) -> None:
    path = Path(FOLDER, f"{name}.py")
    assert f"pelton run -np 2 examples/python/{name}.py" in path.read_text()
    outcome = run(launcher(2, path), 240)
    assert outcome.code == 0, outcome.errors
    reached = re.findall(r"^\[rank \d\] rank \d: accuracy (\d\.\d+)$", outcome.output, re.MULTILINE)
    assert len(reached) == 2, outcome.output
    assert min(map(float, reached)) >= LEAST_ACCURACY, outcome.output


def test_every_family_has_one() -> None:
    assert len(EXAMPLES) == 7
