"""What Pelton says to people: the logger "pelton", or a callback of the user's.

Warnings (a wait that lasts long, above all) come from the runtime's threads. Where nobody has configured logging they
go to standard error, and so do the lines at a job's start and end, which are of level INFO.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable

from pelton import _C

LogCallback = Callable[[int, str], object]

_logger = logging.getLogger("pelton")
_callback: LogCallback | None = None


def set_log_callback(callback: LogCallback | None) -> None:
    """Has everything that Pelton says go to a function instead of to the logger "pelton".

    Args:
      callback: called with a level of `logging` and a line, on any thread; None for the logger again.
    """
    global _callback
    _callback = callback


def set_level(level: int) -> None:
    """Has the logger "pelton" leave out what is below a level.

    Args:
      level: of `logging`.
    """
    _logger.setLevel(level)


def tell(level: int, line: str) -> None:
    """One line for people, of a level of `logging`."""
    if _callback is not None:
        _callback(level, line)
    elif _logger.hasHandlers():
        _logger.log(level, line)
    elif _logger.isEnabledFor(level):  # warnings and what is worse, unless somebody has set a level
        _write(line)


def announce(line: str) -> None:
    """A line at a job's start or end: of level INFO, but seen without any configuration unless PELTON_QUIET=1."""
    if os.environ.get("PELTON_QUIET", "0").strip().lower() not in ("", "0", "false", "no", "off"):
        return
    if _callback is None and not _logger.hasHandlers():
        _write(line)
    else:
        tell(logging.INFO, line)


def _write(line: str) -> None:
    if sys.stderr is not None:  # there may be none, as under pythonw
        print(f"pelton: {line}", file=sys.stderr, flush=True)


_C.set_log_sink(tell)
atexit.register(_C.set_log_sink, None)  # of the first to be registered, so among the last to run
