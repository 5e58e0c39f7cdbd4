"""The code blocks of all pages of the project."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCED = re.compile(r"^```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)((?: {4}.*\n|\n(?= {4}))+)")


@dataclass(frozen=True)
class Block:
    """A block of a page. Threads: a value. Owns: its texts."""

    page: str  # its path below the root
    language: str  # "indented" for one without a fence
    number: int  # among the page's of this language, from 1
    text: str

    @property
    def name(self) -> str:
        """What tables of tests call it."""
        return f"{self.page} {self.language} {self.number}"


def pages() -> list[Path]:
    """Every page that is kept in the repository."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / line for line in listed.stdout.splitlines()]


def blocks() -> list[Block]:
    """All of all pages."""
    found = []
    for page in pages():
        text, counts = page.read_text(), dict[str, int]()
        pieces = [(match[1] or "without a language", match[2]) for match in _FENCED.finditer(text)]
        pieces += [("indented", match[1]) for match in _INDENTED.finditer(_FENCED.sub("", text))]
        for language, content in pieces:
            counts[language] = counts.get(language, 0) + 1
            found.append(Block(str(page.relative_to(ROOT)), language, counts[language], content))
    return found
