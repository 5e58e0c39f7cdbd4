"""What a lane counted, and how to count a junit file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Result:
    """Cases of one lane. A lane with no case at all did not do its work and counts as failed."""

    passes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)  # did not pass at the first attempt

    @property
    def passed(self) -> int:
        """Number of passed cases."""
        return len(self.passes)

    @property
    def failed(self) -> int:
        """Number of failed cases."""
        return len(self.failures)

    def add(self, name: str, *, succeeded: bool) -> None:
        """Counts one case."""
        if succeeded:
            self.passes.append(name)
        else:
            self.failures.append(name)

    def try_again(self, second: Result) -> None:
        """What failed and passed in the `second` attempt has passed, and is named."""
        now = set(second.passes) - set(second.failures)
        recovered = [name for name in self.failures if name in now]
        self.unsteady += recovered
        self.passes += recovered
        self.failures = [name for name in self.failures if name not in now]

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
