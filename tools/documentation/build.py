"""Gathers the pages of the documentation site and has mkdocs build it; started by tools/site.

A page of docs/ keeps its place, files at the top level come beside it, README.md becomes the first page. What a link
names outside of these is copied into source/, so that no link leads out of the site.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml  # mkdocs brings it

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "out" / "site_pages"
SITE = ROOT / "out" / "site"
PACKAGE = ROOT / "torch_bindings" / "pelton"
TOP = {"README.md": "index.md", "CHANGELOG.md": "", "CONTRIBUTING.md": "", "SECURITY.md": "", "AGENTS.md": ""}
_LINK = re.compile(r"(\[[^\]]*\]\()([^)#\s]+)((?:#[^)]*)?\))")


def place_of(path: Path) -> Path:
    """Where a file of the checkout lies below the site's pages."""
    relative = path.relative_to(ROOT)
    if relative.name in TOP and len(relative.parts) == 1:
        return Path(TOP[relative.name] or relative.name)
    if relative.parts[0] == "docs":
        return relative.relative_to("docs")
    # mkdocs would take a page for one of its own, and shows others as they are.
    return Path("source", relative.with_name(relative.name + ".txt"))


def _write_page(path: Path) -> None:
    here = place_of(path)

    def moved(link: re.Match[str]) -> str:
        before, target, after = link.groups()
        if "://" in target:
            return link[0]
        named = (path.parent / target).resolve()
        if named.is_dir():
            named = min(child for child in named.iterdir() if child.is_file() and child.name[0] != ".")
        place = place_of(named)
        if place.parts[0] == "source":
            (PAGES / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(named, PAGES / place)
        up = "../" * (len(here.parts) - 1)
        return f"{before}{up}{place.as_posix()}{after}"

    target = PAGES / here
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(_LINK.sub(moved, path.read_text()))


def public_modules() -> list[str]:
    """Every module of the package that a user may import, by its full name."""
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        # The alias packages hold no names of their own.
        if not any(part.startswith("_") or part == "packages" for part in parts):
            names.append(".".join(parts))
    return names


def _write_reference() -> None:
    folder = PAGES / "api"
    folder.mkdir()
    for name in public_modules():
        (folder / f"{name}.md").write_text(f"# {name}\n\n::: {name}\n")


def _write_configuration(path: Path) -> None:
    """mkdocs.yml with the pages that are found in folders, where it names a folder."""
    configuration = yaml.safe_load(Path(__file__).with_name("mkdocs.yml").read_text())
    for section in configuration["nav"]:
        for title, named in section.items() if isinstance(section, dict) else ():
            parts = [named] if isinstance(named, str) else named
            section[title] = [page for part in parts for page in _pages_of(part)]
    configuration.update(docs_dir=str(PAGES), site_dir=str(SITE))
    configuration["plugins"][1]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(PACKAGE.parent)]
    path.write_text(yaml.safe_dump(configuration, sort_keys=False))


def _pages_of(part: str) -> list[str]:
    if not part.endswith("/"):
        return [part]
    return [str(page.relative_to(PAGES)) for page in sorted((PAGES / part).glob("*.md"))]


def main() -> int:
    """Returns the exit status; a link that leads nowhere is an error."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for path in [*(ROOT / name for name in TOP), ROOT / "LICENSE", *(ROOT / "docs").rglob("*.md")]:
        if path.suffix == ".md":
            _write_page(path)
    for picture in (ROOT / "docs").rglob("*.svg"):
        shutil.copy(picture, PAGES / picture.relative_to(ROOT / "docs"))
    _write_reference()
    configuration = PAGES.with_suffix(".yml")
    _write_configuration(configuration)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(configuration)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # of the theme: a page of advertisement
    status = subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode
    if status == 0:
        print(f"the site is {(SITE / 'index.html').relative_to(ROOT)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
