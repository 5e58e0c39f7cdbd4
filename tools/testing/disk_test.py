"""Room is made by removing what was read last the longest ago, and the output of checkouts that are gone."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path

from tools.testing import disk


class DiskTest(unittest.TestCase):
    """In a folder of its own."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = Path(folder.name)

    def make(self, name: str, *, last_read: float, bytes_long: int = 100) -> Path:
        """A file of the disk cache."""
        path = self.cache / "bazel" / "cas" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(bytes_long))
        os.utime(path, (last_read, 1))
        return path

    def test_the_oldest_go_first(self) -> None:
        old, new, middle = (self.make(name, last_read=at) for name, at in (("a/o", 10), ("n", 30), ("a/m", 20)))
        disk.trim(self.cache / "bazel" / "cas", 250)
        self.assertEqual((old.exists(), middle.exists(), new.exists()), (False, True, True))

    def test_what_fits_stays(self) -> None:
        made = [self.make(str(at), last_read=at) for at in range(3)]
        disk.trim(self.cache / "bazel" / "cas", 300)
        self.assertTrue(all(path.exists() for path in made))

    def test_output_of_a_checkout_that_is_gone(self) -> None:
        bases = {}
        for name, checkout in (("gone", self.cache / "nowhere"), ("here", self.cache)):
            bases[name] = self.cache / "output" / name / "clang"
            (bases[name] / "execroot").mkdir(parents=True)
            (bases[name] / "README").write_text(f"WORKSPACE: {checkout}\nThe first line is read.\n")
            (bases[name] / "execroot").chmod(0o555)  # as Bazel leaves them
        disk.make_room(self.cache)
        self.assertEqual((bases["gone"].exists(), bases["here"].exists()), (False, True))


if __name__ == "__main__":
    unittest.main()
