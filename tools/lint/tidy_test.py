"""The tree as it stands keeps the rules."""

from __future__ import annotations

import unittest
from pathlib import Path

from tools.lint import rules
from tools.lint.source import read_tree

# Bazel hands this file out as a link into the checkout.
ROOT = Path(__file__).resolve().parents[2]


class TidyTest(unittest.TestCase):
    """Runs on the checkout itself, not on Bazel's copy of some of it."""

    def test_tree_keeps_the_rules(self) -> None:
        sources = read_tree(ROOT)
        self.assertGreater(len([source for source in sources if source.is_cpp]), 100, f"no sources at {ROOT}")
        self.assertEqual([str(finding) for finding in rules.check(sources)], [])


if __name__ == "__main__":
    unittest.main()
