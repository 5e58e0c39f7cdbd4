"""Calls that hear no signals while they wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_SLICE_S = 0.05


def aside(action: Callable[[], _T]) -> _T:
    """Runs a call that may wait for long on a thread of its own, so that Python runs the handlers of signals meanwhile.

    What a handler raises ends the wait; the call is left to itself. Torch's stores wait for each other in C++, where
    Ctrl-C would not be heard until they have met.

    Args:
      action: what to run.

    Returns:
      What it returns; what it raises is raised.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="pelton-aside", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SLICE_S)
    if errors:
        raise errors[0]
    return results[0]
