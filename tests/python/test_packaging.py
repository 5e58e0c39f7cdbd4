"""What a wheel says of itself, and what the package says where it does not fit."""

from __future__ import annotations

import importlib
import re
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pelton
import pytest
import torch
from pelton import _C
from pelton._built_for import check
from spawn import HERE, run

sys.path.insert(0, str(HERE.parents[1] / "tools"))
bazel_backend = importlib.import_module("bazel_backend")


def test_another_minor_version_of_torch_is_refused_by_name() -> None:
    check("2.11.0", "2.11.1+cpu")
    with pytest.raises(ImportError, match=r"built for torch 2\.11, and this is torch 2\.14\.1.*torch==2\.11\.\*"):
        check("2.11.0", "2.14.1")


def test_the_refusal_comes_before_the_extension_is_loaded(tmp_path: Path) -> None:
    """A package whose record names another torch: its extension is a file that cannot be loaded at all."""
    package = tmp_path / "pelton"
    package.mkdir()
    for source in Path(pelton.__file__).parent.glob("*.py"):
        (package / source.name).write_text(source.read_text())
    (package / "_build.py").write_text('TORCH = "1.13.0"\n')
    (package / "_C.so").write_text("no library")
    outcome = run(
        [sys.executable, "-c", "import pelton"], 120, {"PYTHONPATH": f"{tmp_path}:{HERE.parents[1]}/torch_bindings"}
    )
    assert outcome.code == 1
    assert "was built for torch 1.13" in outcome.errors
    assert "cannot be loaded" not in outcome.errors


def test_no_simulation_is_in_a_process_that_trains() -> None:
    """tools/lint/threads.py excepts these classes from its count of locks and threads for that reason."""
    simulations = (b"SimFabric", b"InProcessCoordinator", b"GpuWorld")
    package = Path(pelton.__file__).parent
    for path in (Path(_C.__file__), package / "pelton-daemon"):
        binary = path.read_bytes()
        assert b"TcpWorker" in binary, f"{path} names no class"
        assert [name for name in simulations if name in binary] == []


@pytest.fixture
def wheel(tmp_path: Path) -> zipfile.ZipFile:
    """A wheel without an extension: what is asked of it here needs none."""
    name = bazel_backend._write_wheel(tmp_path, bazel_backend.python_files(), "2.11.0+cu130")
    return zipfile.ZipFile(tmp_path / name)


def test_the_metadata_name_licence_version_and_the_torch_it_was_built_for(wheel: zipfile.ZipFile) -> None:
    folder = f"pelton-{pelton.__version__}.dist-info"
    metadata = Parser().parsestr(wheel.read(f"{folder}/METADATA").decode())
    assert metadata["Version"] == pelton.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    requirements = metadata.get_all("Requires-Dist") or []
    assert [requirement for requirement in requirements if "extra" not in requirement] == ["torch==2.11.*"]
    assert 'xxhash>=3; extra == "cache"' in requirements
    assert 'scikit-optimize>=0.10; extra == "service"' in requirements
    assert (metadata.get_all("Provides-Extra") or []) == ["accelerate", "cache", "interactive", "lightning", "service"]
    assert "Two commands" in str(metadata.get_payload()) or "Install" in str(metadata.get_payload())
    assert b"Apache License" in wheel.read(f"{folder}/licenses/LICENSE")


def test_an_installed_wheel_has_its_commands_and_those_of_baguas_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Installed by pip into a folder of its own; the package that they import is the one under test."""
    words = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", str(tmp_path)]
    assert wheel.filename is not None
    installed = run([sys.executable, "-m", "pip", *words, wheel.filename], 120)
    assert installed.code == 0, installed.errors
    usages = {
        "baguarun": "usage: pelton baguarun",
        "bagua_sys_perf": "usage: bagua_sys_perf",
        "bfrun": "usage: bfrun",
        "ibfrun": "usage: ibfrun",
        "pelton": "usage: pelton run",
    }
    programs = {path.name: path for path in (tmp_path / "bin").iterdir()}
    assert set(programs) == set(usages)
    for name, usage in usages.items():
        outcome = run([str(programs[name]), "--help"], 120)
        assert outcome.code == 0, outcome.errors
        assert outcome.output.startswith(usage), outcome.output


def test_every_file_is_in_the_record(wheel: zipfile.ZipFile) -> None:
    record = next(name for name in wheel.namelist() if name.endswith("/RECORD"))
    listed = {line.rsplit(",", 2)[0] for line in wheel.read(record).decode().splitlines()}
    assert listed == set(wheel.namelist())


def test_what_import_torch_imports_needs_nothing_of_the_package() -> None:
    """An editable install copies it, so that a checkout that was moved cannot break `import torch`."""
    source = (HERE.parents[1] / "torch_bindings" / "pelton_autoload" / "__init__.py").read_text()
    outside_functions = [line for line in source.splitlines() if re.match(r"(import|from) ", line)]
    assert not [line for line in outside_functions if "pelton" in line]


def test_the_torch_of_a_build_is_this_pythons() -> None:
    assert bazel_backend.torch_version() == torch.__version__
