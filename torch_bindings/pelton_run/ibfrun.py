"""BlueFog's launcher for notebooks: `ibfrun start -np 4` starts ranks that wait for what a notebook sends them.

The ranks are ipyparallel's engines, started by `bfrun`; a notebook reaches them with
`ipyparallel.Client(profile="bluefog")`, and `ibfrun stop` ends them and their controller.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pelton_run import bfrun

_PROGRAM = "ibfrun"
_START_SECONDS = 120.0
_STOP_SECONDS = 20.0
_LOOK_SECONDS = 0.1
# An engine that computes answers no heartbeat while the interpreter holds its lock.
_MISSES_WITHOUT_HEARTBEAT = 1_000_000


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="action", required=True)
    start = commands.add_parser("start", help="start the ranks; every other flag is bfrun's", allow_abbrev=False)
    start.add_argument("--enable-heartbeat", action="store_true", help="count silent engines as gone")
    start.add_argument("--ip", default="127.0.0.1", help="the controller listens there (default: this host alone)")
    stop = commands.add_parser("stop", help="end the ranks and their controller")
    for command in (start, stop):
        command.add_argument("--ipython-profile", default="bluefog", help="a name for these ranks (default: bluefog)")
    return parser


class _Cluster:
    """The ranks of one profile. Threads: one. Owns: nothing; the processes live on, and a file names them."""

    def __init__(self, profile: str) -> None:
        from IPython.paths import get_ipython_dir  # a profile is IPython's, and so is where it lies

        self._profile = profile
        self._folder = Path(get_ipython_dir()) / f"profile_{profile}"
        self._record = self._folder / "pid" / "ibfrun.json"
        self._log = self._folder / "log" / "ibfrun.log"

    def start(self, options: argparse.Namespace, flags: Sequence[str]) -> int:
        """Starts controller and engines and waits until all engines are there."""
        if self._processes():
            return _fail(f"profile {self._profile!r} has ranks already; end them with 'ibfrun stop'")
        for folder in (self._record.parent, self._log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        for left in (self._folder / "security").glob("ipcontroller-*.json"):
            left.unlink()  # of a controller that has ended: an engine would try to reach it
        engine = [sys.executable, "-m", "ipyparallel.engine", f"--profile={self._profile}"]
        words = [*flags, *engine]
        ranks = bfrun.parsed(words).ranks
        began = [
            self._begin(self._controller_words(options)),
            self._begin([sys.executable, "-m", bfrun.__name__, *words]),
        ]
        self._record.write_text(json.dumps(began))
        return self._await(ranks)

    def stop(self) -> int:
        """Ends what `start` began: the ranks first."""
        processes = self._processes()
        if not processes:
            return _fail(f"profile {self._profile!r} has no ranks")
        for process in reversed(processes):
            _end(process)
        self._record.unlink()
        return 0

    def _controller_words(self, options: argparse.Namespace) -> list[str]:
        words = [sys.executable, "-m", "ipyparallel.controller", f"--profile={self._profile}", f"--ip={options.ip}"]
        if not options.enable_heartbeat:
            words.append(f"--HeartMonitor.max_heartmonitor_misses={_MISSES_WITHOUT_HEARTBEAT}")
        return words

    def _begin(self, words: Sequence[str]) -> list[int]:
        """Starts a process that outlives this one; its id and when it began, which no later process shares."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        began = _began_at(process.pid)
        return [process.pid, -1 if began is None else began]

    def _processes(self) -> list[int]:
        """Those of `start` that still run."""
        try:
            began = json.loads(self._record.read_text())
        except (OSError, ValueError):
            return []
        return [pid for pid, at in began if _began_at(pid) == at]

    def _await(self, ranks: int) -> int:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            if len(self._processes()) < 2:
                self.stop()
                return _fail(f"controller or ranks have ended; {self._log} says why")
            if self._engines() == ranks:
                print(f"{_PROGRAM}: {ranks} ranks; ipyparallel.Client(profile={self._profile!r}) reaches them")
                return 0
            time.sleep(_LOOK_SECONDS)
        self.stop()
        return _fail(f"not all of {ranks} engines came within {_START_SECONDS:.0f} s; {self._log} says more")

    def _engines(self) -> int:
        ipyparallel = importlib.import_module("ipyparallel")
        if not (self._folder / "security" / "ipcontroller-client.json").exists():
            return 0
        try:
            with ipyparallel.Client(profile=self._profile, timeout=5) as client:
                return len(client.ids)
        except (OSError, TimeoutError, ValueError, ipyparallel.error.TimeoutError):
            return 0  # the controller has not come so far


def _began_at(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _end(pid: int) -> None:
    """SIGTERM, and SIGKILL for what does not heed it."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, sign)
        except ProcessLookupError:
            return
        until = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < until:
            if _began_at(pid) is None:
                return
            time.sleep(_LOOK_SECONDS)


def _fail(text: str) -> int:
    print(f"{_PROGRAM}: {text}", file=sys.stderr)
    return 1


def run(words: Sequence[str] | None = None) -> int:
    """Starts or ends the ranks of a notebook.

    Args:
      words: of the command line; None for the process's own.

    Returns:
      0; 1 where the ranks did not come, or there are none to end; the text says why.

    Raises:
      SystemExit: with 2, a flag is wrong.
    """
    options, flags = _parser().parse_known_args(words)
    if options.action == "stop" and flags:
        _parser().error(f"{' '.join(flags)}: 'stop' knows no such flag")
    missing = [name for name in ("ipyparallel", "IPython") if importlib.util.find_spec(name) is None]
    if missing:
        return _fail(f"needs the package {missing[0]}: pip install 'pelton[interactive]'")
    cluster = _Cluster(options.ipython_profile)
    return cluster.stop() if options.action == "stop" else cluster.start(options, flags)


if __name__ == "__main__":
    sys.exit(run())
