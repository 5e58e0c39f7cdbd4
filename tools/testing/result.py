"""What a lane counted, and how to count a junit file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Result:
    """Cases of one lane. A lane with no case at all did not do its work and counts as failed."""

    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Number of failed cases."""
        return len(self.failures)

    def add(self, name: str, *, succeeded: bool) -> None:
        """Counts one case."""
        if succeeded:
            self.passed += 1
        else:
            self.failures.append(name)

    def add_junit(self, path: Path) -> bool:
        """Counts the cases of a junit file; False if it cannot be read or holds none.

        A case of gtest that was filtered out or disabled (status "notrun") is no case.
        """
        try:
            cases = list(ElementTree.parse(path).getroot().iter("testcase"))
        except (OSError, ElementTree.ParseError):
            return False
        for case in cases:
            name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
            if case.get("status") == "notrun":
                continue
            if case.find("skipped") is not None or case.get("result") == "skipped":
                self.skipped.append(name)
            else:
                self.add(name, succeeded=case.find("failure") is None and case.find("error") is None)
        return bool(cases)
