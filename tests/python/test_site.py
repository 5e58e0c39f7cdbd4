"""tools/site: every page and every public name, and no link that leads nowhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from spawn import HERE

ROOT = HERE.parents[1]
PARTS = ("algorithms", "backend", "comm", "core", "docs", "examples", "tools/documentation", "torch_bindings/pelton")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the site is made of, apart from the checkout, so that a test may spoil it."""
    folder = tmp_path_factory.mktemp("checkout")
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.so", "__pycache__", "bazel-*"))
    for page in [*ROOT.glob("*.md"), ROOT / "LICENSE"]:
        shutil.copy(page, folder)
    return folder


def build(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "tools" / "documentation" / "build.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_it_has_every_page_and_every_public_name(checkout: Path) -> None:
    built = build(checkout)
    assert built.returncode == 0, built.stdout + built.stderr
    site = checkout / "out" / "site"
    pages = [path.relative_to(checkout / "docs").with_suffix(".html") for path in (checkout / "docs").rglob("*.md")]
    assert len(pages) > 30
    assert [page for page in pages if not (site / page).exists()] == []
    assert "three lines change" in (site / "index.html").read_text().lower()
    reference = (site / "api" / "pelton.html").read_text()
    assert all(f'id="pelton.{name}"' in reference for name in ("init", "wrap", "check", "empty"))
    assert 'id="pelton.lightning.BaguaStrategy"' in (site / "api" / "pelton.lightning.html").read_text()


def test_a_link_that_leads_nowhere_is_an_error(checkout: Path) -> None:
    page = checkout / "docs" / "graphs.md"
    page.write_text(f"{page.read_text()}\n[x](python.md#no-such-section), [x](no_such_page.md)\n")
    built = build(checkout)
    assert built.returncode != 0
    assert "no-such-section" in built.stderr and "no_such_page.md" in built.stderr
