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


_IS_PLAIN = """
import sys
import torch
assert "pelton.torch_api" not in sys.modules
assert not hasattr(torch.nn.Module, "with_bagua")
assert not [name for name in dir(torch.Tensor) if "bagua" in name]
print("torch is plain")
"""


def test_it_changes_no_class_of_torchs(program: Path) -> None:
    program.write_text(program.read_text() + _IS_PLAIN)
    outcome = run([*launcher(2), str(program)], 240, environment())
    assert outcome.code == 0, outcome.errors
    assert outcome.output.count("torch is plain") == 2


@pytest.mark.parametrize("package", ["distributed", "bluefog.torch", "_lightning"])
def test_other_ways_in_change_none_either(package: str) -> None:
    _check_alone(f"import pelton.{package}\n{_IS_PLAIN}")


def test_baguas_names_come_with_their_package() -> None:
    _check_alone(
        "import pelton.torch_api as bagua, torch\n"
        "assert torch.nn.Module.with_bagua is bagua.BaguaModule.with_bagua\n"
        "assert torch.Tensor.ensure_bagua_tensor is bagua.BaguaTensor.ensure_bagua_tensor\n"
        "import pelton.torch_api.algorithms.bytegrad as theirs, pelton._training.algorithms.bytegrad as ours\n"
        "assert theirs.ByteGradAlgorithm is ours.ByteGradAlgorithm\n"
    )


def _check_alone(script: str) -> None:
    outcome = run([sys.executable, "-c", script], 120, environment())
    assert outcome.code == 0, outcome.errors
