"""What a notebook calls that has its ranks from `ibfrun`."""

from __future__ import annotations

import os
import signal

from pelton._extras import optional_module

_ANSWER_SECONDS = 2.0
_SIGNAL_SECONDS = 10.0


def interrupt_hanged_processes(profile: str = "bluefog") -> list[int]:
    """Interrupts the engines that do not answer, as Ctrl-C does a script: they raise KeyboardInterrupt and are free.

    Blocks: two seconds where all engines are at something, and as long as it takes to reach those that hang.

    Args:
      profile: IPython's, that `ibfrun start` was given.

    Returns:
      The numbers of the engines that were interrupted, ascending.

    Raises:
      ImportError: ipyparallel is not installed.
      OSError: no `ibfrun start` runs under this profile.
      TimeoutError: an engine could not be reached with the signal.
    """
    ipyparallel = optional_module("ipyparallel", "interrupt_hanged_processes", "interactive")
    with ipyparallel.Client(profile=profile) as client:
        answers = {engine: client[engine].apply_async(os.getpid) for engine in client.ids}
        client.wait(list(answers.values()), timeout=_ANSWER_SECONDS)
        hanging = sorted(engine for engine, answer in answers.items() if not answer.ready())
        if hanging:
            client.send_signal(signal.SIGINT, targets=hanging, block=False).result(_SIGNAL_SECONDS)
    return hanging
