"""Processes that were forked from a rank: they are no ranks, and speak for nobody.

The runtime itself refuses to work there and destroys nothing (core/base/fork.h); what Python remembers is forgotten.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from pelton import _C
from pelton.errors import FailedPrecondition

_forgetters: list[Callable[[], object]] = []


def forget_in_child(forget: Callable[[], object]) -> None:
    """Has a function called in every child that is forked from a rank."""
    _forgetters.append(forget)


def keep_forever(thing: object) -> None:
    """An object whose end would wait for threads that a forked child does not have."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def check() -> None:
    """Refuses what only a rank can do.

    Raises:
      FailedPrecondition: this process was forked from a rank.
    """
    if _C.is_forked_child():
        raise FailedPrecondition(
            f"process {os.getpid()} was forked from one that is a rank of a job, and is none itself: communicate in "
            "the parent, fork before init_process_group, or start the process by multiprocessing's 'spawn'"
        )


def _in_child() -> None:
    if _C.is_forked_child():
        for forget in _forgetters:
            forget()


os.register_at_fork(after_in_child=_in_child)
