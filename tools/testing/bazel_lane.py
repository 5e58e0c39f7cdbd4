"""Lanes that Bazel runs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.testing.environment import LOGS, ROOT, Settings, output_base, run
from tools.testing.result import Result

SYMLINKS = "--experimental_convenience_symlinks"
# A machine that stands still for seconds breaks what waits with a deadline. Who passes only now is named.
ATTEMPTS = 2
FULL = "No space left on device"
GIVES_WAY = 5  # the nice value of a scheduling group: a quarter of the cores where others want all


@dataclass(frozen=True)
class BazelLane:
    """`bazel test` of some targets under one configuration.

    Attributes:
      name: of the lane, its log and its output base.
      targets: patterns.
      flags: of the configuration.
      long_flags: more of them, with --long.
      without: tests with this tag are built and not run; "" for none.
      own_output_base: False shares the output base that plain `bazel` uses in this checkout.
      attempts: how often a test is tried before it counts as failed.
      timeout_s: for the whole lane, from clean.
    """

    name: str
    targets: tuple[str, ...]
    flags: tuple[str, ...] = ()
    long_flags: tuple[str, ...] = ()
    own_output_base: bool = True
    without: str = ""
    timeout_s: float = 3600
    attempts: int = ATTEMPTS

    def __call__(self, settings: Settings) -> Result:
        """Runs the lane; every target that should have given a result and did not is a failure."""
        events = LOGS / f"{self.name}.events.json"
        log = LOGS / f"{self.name}.log"
        options = [f"--build_event_json_file={events}", "--keep_going", "--noshow_progress", "--color=no"]
        options.append(f"{SYMLINKS}=ignore")
        options.append(f"--flaky_test_attempts={self.attempts}")
        options += ["--test_timeout=7200", *self.long_flags] if settings.long else []
        options += [f"--test_tag_filters=-{self.without}"] if self.without else []
        environment = [f"--test_env={name}={value}" for name, value in settings.test_environment().items()]
        self._give_way()
        command = [*self._bazel(), "test", *options, *self.flags, *environment, "--", *self.targets]
        status = run(command, log, timeout_s=self.timeout_s * (30 if settings.long else 1), settings=settings)
        result = Result()
        count_tests(read_events(events), result, self.without)
        if FULL in log.read_text(errors="replace"):
            result.add(f"the disk is full: make room for {log} and {output_base(self.name)}", succeeded=False)
        if status != 0 and not result.failures:
            result.add(f"bazel test ended with status {status}", succeeded=False)
        run([*self._bazel(), "shutdown"], log, timeout_s=60, settings=settings)
        return result

    def _give_way(self) -> None:
        """Has the tests of other lanes, which wait with deadlines, come first where cores are short. The server and all
        that it starts are one scheduling group, which a kernel without such groups does not know.
        """
        if not self.own_output_base:
            return
        printed = subprocess.run([*self._bazel(), "info", "server_pid"], cwd=ROOT, capture_output=True, check=False)
        with contextlib.suppress(OSError):
            Path(f"/proc/{printed.stdout.decode().strip()}/autogroup").write_text(str(GIVES_WAY))

    def _bazel(self) -> list[str]:
        return ["bazel", f"--output_base={output_base(self.name)}"] if self.own_output_base else ["bazel"]


def build(package: str, name: str, log: Path, settings: Settings) -> Path:
    """Builds a program in the output base that plain `bazel` uses. Returns its path, also if that failed."""
    command = ["bazel", "build", "--noshow_progress", f"{SYMLINKS}=ignore", f"//{package}:{name}"]
    run(command, log, timeout_s=900, settings=settings)
    printed = subprocess.run(["bazel", "info", "bazel-bin"], cwd=ROOT, capture_output=True, text=True, check=False)
    return Path(printed.stdout.strip()) / package / name


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Events of one invocation; none if it did not get that far. On a full disk Bazel leaves lines that break off; what
    they told is missed as a test without a result.
    """
    if path.exists():
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)


def count_tests(events: Iterator[dict[str, Any]], result: Result, without: str = "") -> None:
    """Counts the cases of each test target, of all its shards by their last attempts; a target without a result, or
    one that ended badly, is a failure, but for those with the tag `without`.
    """
    expected: set[str] = set()
    last: dict[str, dict[int, dict[str, Any]]] = {}  # event by label and shard
    for event in events:
        identity = event.get("id", {})
        configured = event.get("configured", {})
        is_left_out = without != "" and without in configured.get("tag", [])
        if "targetConfigured" in identity and "testSize" in configured and not is_left_out:
            expected.add(identity["targetConfigured"]["label"])
        if "testResult" in identity and "testResult" in event:
            test = identity["testResult"]
            last.setdefault(test["label"], {})[test.get("shard", 1)] = event
        if event.get("aborted") and "pattern" in identity:
            result.add(f"{identity['pattern']}: {event['aborted'].get('description', '')}", succeeded=False)
    not_built = {1: {"id": {"testResult": {}}, "testResult": {"status": "NOT_BUILT"}}}
    for label in sorted(expected | set(last)):
        for number, event in last.get(label, not_built).items():
            passed = _count_shard(label, event["testResult"], result)
            if passed and event["id"]["testResult"].get("attempt", 1) > 1:
                result.unsteady.append(f"{label}, shard {number}")


def _count_shard(label: str, test_result: dict[str, Any], result: Result) -> bool:
    """Whether all of it passed."""
    status = test_result.get("status", "NO_STATUS")
    junit = _junit_file(test_result)
    failed_before = result.failed
    counted = junit is not None and result.add_junit(junit)
    ended_well = status in ("PASSED", "FLAKY")
    if not ended_well and result.failed == failed_before:
        result.add(f"{label}: {status}", succeeded=False)
    elif ended_well and not counted:
        result.add(label, succeeded=True)
    return result.failed == failed_before


def _junit_file(test_result: dict[str, Any]) -> Path | None:
    for output in test_result.get("testActionOutput", []):
        if output.get("name") == "test.xml":
            return Path(urllib.parse.unquote(urllib.parse.urlparse(output.get("uri", "")).path))
    return None
