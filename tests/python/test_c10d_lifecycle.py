"""Process groups over Pelton, from making to destroying; see cases/c10d_lifecycle.py."""

import importlib
import os
import sys
from pathlib import Path

import pytest
from spawn import HERE, PACKAGES, case_ids, check_case, run

sys.path.insert(0, str(HERE.parents[1] / "tools"))
bazel_backend = importlib.import_module("bazel_backend")

MODULE = "cases.c10d_lifecycle"
ALONE = """
import sys, torch, torch.distributed as dist
assert "pelton" not in sys.modules
dist.init_process_group("pelton", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.tolist() == [1, 1, 1] and "pelton" in sys.modules
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_lifecycle(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


def test_an_installed_package_needs_no_import(tmp_path: Path) -> None:
    """`import torch` finds the entry point that the wheel carries."""
    folder = tmp_path / "pelton-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: pelton\nVersion: 0\n")
    (folder / "entry_points.txt").write_text("\n".join(bazel_backend.TORCH_BACKENDS))
    outcome = run([sys.executable, "-c", ALONE], 60, {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGES}"})
    assert outcome.code == 0, outcome.errors
