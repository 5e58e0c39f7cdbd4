"""The program that README.md shows: it is accepted by the type checker, and it runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from spawn import PACKAGES, environment, launcher, run

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None, "README.md has no program"
    path = tmp_path / "script.py"
    path.write_text(found.group(1))
    return path


def test_the_type_checker_accepts_it(program: Path, tmp_path: Path) -> None:
    # Tensor.backward has no types in torch itself, so that untyped calls are allowed.
    options = ["--strict", "--allow-untyped-calls", "--follow-imports=silent", f"--cache-dir={tmp_path}"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--config-file=", str(program)],
        env={**os.environ, "MYPYPATH": "" if PACKAGES.name == "site-packages" else str(PACKAGES)},  # there it is found
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_it_runs(program: Path) -> None:
    outcome = run([*launcher(2), str(program)], 240, environment())
    assert outcome.code == 0, outcome.errors
    assert "rank 0 is done" in outcome.output and "rank 1 is done" in outcome.output
