"""Runs the lanes in turn and ends with one line: N passed, N failed. Started by tools/test."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.testing import disk, lanes, turns
from tools.testing.environment import LOGS, ROOT, Settings, cache
from tools.testing.result import Result

LINES_OF_LOG = 80


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/test", description="Every test of the project.")
    parser.add_argument("--long", action="store_true", help="more seeds, fuzzing, all of PyTorch's own tests: hours")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(lanes.QUICK)}")
    parser.add_argument("--only", metavar="LANE[,LANE]", help=f"of {', '.join(lanes.LANES)}")
    numbers = [*map(str, range(turns.COUNT)), "all"]
    parser.add_argument("--turn", choices=numbers, help="of the slow tests; the commit's where it is not given")
    options = parser.parse_args()
    is_whole = options.long or options.only or options.turn == "all"
    options.turn = None if is_whole else int(options.turn or turns.current())
    usual = [*lanes.LANES] if options.long else lanes.usual(options.turn)
    names = options.only.split(",") if options.only else list(lanes.QUICK if options.quick else usual)
    unknown = [name for name in names if name not in lanes.LANES]
    if unknown:
        parser.error(f"no lane {', '.join(unknown)}; there are {', '.join(lanes.LANES)}")
    options.names = names
    return options


def run_lane(name: str, settings: Settings) -> Result:
    """Runs one lane and says what came of it."""
    print(f"{name:8} ...", flush=True)  # one write a line: lanes run beside each other
    began = time.monotonic()
    try:
        result = lanes.LANES[name](settings)
    except Exception as error:  # a broken lane is a failed one; the others still run
        result = Result(failures=[f"{type(error).__name__}: {error}"])
    if result.passed + result.failed == 0:
        result.add("no case ran", succeeded=False)
    seconds = time.monotonic() - began
    print(f"{name:8} {result.passed} passed, {result.failed} failed, {seconds:.0f} s", flush=True)
    for case in result.skipped:
        print(f"{name:8} skipped: {case}")
    for case in result.unsteady:
        print(f"{name:8} UNSTEADY: {case} failed at first; that is a defect, too (test_attempts/ beside its log)")
    if result.failures:
        show_failures(name, result)
    return result


def show_failures(name: str, result: Result) -> None:
    """Names the failed cases and shows the end of the lane's log."""
    for case in result.failures:
        print(f"{name:8} FAILED: {case}")
    log = LOGS / f"{name}.log"
    if log.exists():
        lines = log.read_text(errors="replace").splitlines()
        print(f"{name:8} the end of {log.relative_to(ROOT)} ({len(lines)} lines):")
        print("\n".join(f"  | {line}" for line in lines[-LINES_OF_LOG:]), flush=True)


def tell_turn(turn: int, names: Sequence[str]) -> None:
    """Says what the run leaves to others: nothing is passed over in silence."""
    files = sorted(name for name, own in turns.by_file().items() if own != turn)
    slow = sorted({*lanes.usual(None)} - {*names})
    print(f"turn {turn} of the slow tests, from 0 to {turns.COUNT - 1}; to others (tools/test --turn all) are left")
    print(f"  lanes {', '.join(slow)}; files {', '.join(files)}", flush=True)


def main() -> int:
    """Returns the exit status."""
    options = parse()
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    disk.make_room(cache())
    began = time.monotonic()
    settings = Settings(long=options.long, turn=options.turn)
    if options.turn is not None:
        tell_turn(options.turn, options.names)
    results: list[Result] = []

    def run_track(track: Sequence[str]) -> list[Result]:
        return [run_lane(name, settings) for name in track if name in options.names]

    for group in lanes.GROUPS:
        with ThreadPoolExecutor(len(group)) as beside:
            results += itertools.chain.from_iterable(beside.map(run_track, group))
    passed = sum(result.passed for result in results)
    failed = sum(result.failed for result in results)
    print(f"all lanes took {time.monotonic() - began:.0f} s; their logs are in {LOGS.relative_to(ROOT)}/")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
