"""Nothing that failed, was not built or did not run is counted as passed."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from typing import Any

from tools.testing import lanes, turns
from tools.testing.bazel_lane import count_tests, read_events
from tools.testing.result import Result

SUITE = """<testsuites><testsuite name="A">
<testcase name="Works" classname="A" status="run" result="completed"/>
<testcase name="Breaks" classname="A" status="run"><failure message="x"/></testcase>
<testcase name="Waits" classname="A" status="run" result="skipped"><skipped/></testcase>
<testcase name="DISABLED_Sleeps" classname="A" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""


def configured(label: str, size: str | None = "SMALL") -> dict[str, Any]:
    """The event of a target that is to be built; a test if it has a size."""
    return {"id": {"targetConfigured": {"label": label}}, "configured": {"testSize": size} if size else {}}


def tested(label: str, status: str, junit: Path | None = None, **which: int) -> dict[str, Any]:
    """The event of a test that ran; `which` shard and attempt."""
    outputs = [{"name": "test.xml", "uri": junit.as_uri()}] if junit else []
    return {
        "id": {"testResult": {"label": label, **which}},
        "testResult": {"status": status, "testActionOutput": outputs},
    }


class CountingTest(unittest.TestCase):
    """Over made-up events and junit files."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.junit = Path(folder.name) / "test.xml"
        self.junit.write_text(SUITE)
        self.result = Result()

    def test_cases_of_a_junit_file(self) -> None:
        self.assertTrue(self.result.add_junit(self.junit))
        self.assertEqual(self.result, Result(["A.Works"], ["A.Breaks"], skipped=["A.Waits"]))

    def test_an_unreadable_junit_file_holds_no_cases(self) -> None:
        self.junit.write_text("<testsuites>")
        self.assertFalse(self.result.add_junit(self.junit))
        self.assertFalse(self.result.add_junit(self.junit.with_name("none.xml")))

    def test_a_test_that_was_not_built_fails(self) -> None:
        count_tests(iter([configured("//a:t")]), self.result)
        self.assertEqual(self.result.failures, ["//a:t: NOT_BUILT"])

    def test_a_test_that_its_tag_leaves_out_is_not_missed(self) -> None:
        left_out = configured("//a:t")
        left_out["configured"]["tag"] = ["noasan"]
        count_tests(iter([left_out, configured("//a:u")]), self.result, without="noasan")
        self.assertEqual(self.result.failures, ["//a:u: NOT_BUILT"])

    def test_a_test_that_ran_out_of_time_fails_though_its_cases_passed(self) -> None:
        self.junit.write_text('<testsuite><testcase name="Works"/></testsuite>')
        count_tests(iter([configured("//a:t"), tested("//a:t", "TIMEOUT", self.junit)]), self.result)
        self.assertEqual(self.result.failures, ["//a:t: TIMEOUT"])

    def test_a_passed_test_without_cases_is_one_case(self) -> None:
        count_tests(iter([configured("//a:t"), tested("//a:t", "PASSED")]), self.result)
        self.assertEqual((self.result.passed, self.result.failed), (1, 0))

    def test_every_shard_counts(self) -> None:
        shards = [tested("//a:t", "PASSED", self.junit, shard=shard) for shard in (1, 2)]
        count_tests(iter([configured("//a:t"), *shards]), self.result)
        self.assertEqual((self.result.passed, self.result.failed), (2, 2))

    def test_a_shard_that_failed_is_not_hidden_by_the_next(self) -> None:
        shards = [tested("//a:t", "FAILED", shard=1), tested("//a:t", "PASSED", shard=2)]
        count_tests(iter([configured("//a:t"), *shards]), self.result)
        self.assertEqual((self.result.passed, self.result.failures), (1, ["//a:t: FAILED"]))

    def test_who_passes_at_the_second_attempt_is_counted_once_and_named(self) -> None:
        attempts = [tested("//a:t", "FAILED", attempt=1), tested("//a:t", "PASSED", attempt=2)]
        count_tests(iter([configured("//a:t"), *attempts]), self.result)
        self.assertEqual(self.result, Result(["//a:t"], unsteady=["//a:t, shard 1"]))

    def test_who_fails_at_both_attempts_has_failed(self) -> None:
        attempts = [tested("//a:t", "FAILED", attempt=attempt) for attempt in (1, 2)]
        count_tests(iter([configured("//a:t"), *attempts]), self.result)
        self.assertEqual((self.result.passed, self.result.failures), (0, ["//a:t: FAILED"]))

    def test_a_line_that_a_full_disk_broke_off_hides_no_other(self) -> None:
        events = self.junit.with_name("events.json")
        events.write_text('{"id": {"targetCon\n\n{"id": {"pattern": "//a"}}\n')
        self.assertEqual(list(read_events(events)), [{"id": {"pattern": "//a"}}])

    def test_a_second_attempt_counts_for_what_passes_in_it(self) -> None:
        first = Result(["a"], ["b", "c", "d"])
        first.try_again(Result(["b", "d"], ["c", "d"]))
        self.assertEqual(first, Result(["a", "b"], ["c", "d"], unsteady=["b"]))

    def test_every_lane_is_in_one_group(self) -> None:
        names = [name for group in lanes.GROUPS for track in group for name in track]
        self.assertEqual(sorted(names), sorted(lanes.LANES))

    def test_all_turns_together_have_everything(self) -> None:
        usual = [lanes.usual(turn) for turn in range(turns.COUNT)]
        self.assertEqual({name for names in usual for name in names}, {*lanes.usual(None)})
        for lane in lanes.LANES.values():
            if isinstance(lane, lanes.LaneInTurns):
                self.assertLess({*lane.targets_by_turn}, {*range(turns.COUNT)})
        for turn, names in enumerate(usual):
            for lane in (lanes.LANES[name] for name in names):
                self.assertTrue(not isinstance(lane, lanes.LaneInTurns) or turn in lane.targets_by_turn)

    def test_slow_files_are_dealt_evenly(self) -> None:
        loads = [0] * turns.COUNT
        for name, turn in turns.by_file().items():
            loads[turn] += turns.SECONDS[name]
        self.assertLess(max(loads), 1.1 * min(loads))

    def test_libraries_are_no_tests(self) -> None:
        count_tests(iter([configured("//a:lib", size=None)]), self.result)
        self.assertEqual(self.result, Result())


if __name__ == "__main__":
    unittest.main()
