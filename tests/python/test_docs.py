"""What the pages say exists, exists; what a user can set is on the page of variables."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from spawn import HERE

ROOT = HERE.parents[1]
PRODUCT = ("core", "comm", "algorithms", "backend", "torch_bindings", "tools")
# Read by tests, stand-ins and the build alone, or set by the launcher for its ranks and for nobody else.
NOT_A_USERS = re.compile(
    r"_STAND_IN_|^PELTON_((MOST_)?SEEDS?|LONG|SOAK_KILLS|TURN|ACCELERATOR|WIRE_PAIR|PYTHON|HAS_CAF|OVER_UCX|BENCH)"
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_VARIABLE = re.compile(r"\"((?:PELTON|BAGUA)_[A-Z0-9_]*[A-Z0-9])\"")


def _tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / line for line in listed.stdout.splitlines()]


def test_every_link_of_every_page_leads_somewhere() -> None:
    pages = _tracked("*.md")
    assert len(pages) > 20
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in _LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


def test_every_variable_is_on_its_page() -> None:
    listed = set(re.findall(r"`((?:PELTON|BAGUA)_[A-Z0-9_]+)`", (ROOT / "docs" / "variables.md").read_text()))
    sources = [path for folder in PRODUCT for path in _tracked(f"{folder}/*") if path.suffix in (".cc", ".h", ".py")]
    texts = [
        path.read_text()
        for path in sources
        if not re.search(r"_test\.|test_|stand_in|/lint/|benchmark", str(path.relative_to(ROOT)))
    ]
    read = {name for text in texts for name in _VARIABLE.findall(text) if not NOT_A_USERS.search(name)}
    assert len(read) > 15
    assert read - listed == set()
    assert {name for name in listed if not any(name in text for text in texts)} == set()


def test_an_operation_may_take_as_long_in_every_language() -> None:
    limits = (ROOT / "core" / "base" / "limits.h").read_text()
    minutes = re.search(r"kDefaultOperationTimeout = absl::Minutes\((\d+)\)", limits)
    python = (ROOT / "torch_bindings" / "pelton" / "_training" / "env.py").read_text()
    seconds = re.search(r'"PELTON_TIMEOUT", ([\d.]+)\)', python)
    page = re.search(r"`PELTON_TIMEOUT` \|.*\| (\d+) \|", (ROOT / "docs" / "variables.md").read_text())
    assert minutes and seconds and page
    assert 60 * int(minutes[1]) == float(seconds[1]) == int(page[1])
