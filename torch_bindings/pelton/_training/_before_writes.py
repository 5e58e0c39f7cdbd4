"""What still reads a model's tensors beside training, and has to be through before something writes to them.

Pelton itself lets it through before it writes: optimizers' steps, ends of rounds, collectives that Python calls,
`load_state_dict` of a wrapped model. Whatever else writes, the reader has to find out by itself.
"""

from __future__ import annotations

import threading
from typing import Protocol

from pelton._training import _fork


class Reader(Protocol):
    """Threads: one at a time. Owns: its own."""

    @property
    def is_done(self) -> bool:
        """Whether `finish` would wait for nothing."""

    def finish(self) -> None:
        """Ends it, well or not. Blocks: until it has read all."""


_reader: Reader | None = None
_is_ending = False  # by the thread that has the lock
_lock = threading.RLock()  # whoever comes second must not write before the first has seen the end


def add(reader: Reader) -> None:
    """It reads from now on, in the place of another one, which is let through first."""
    global _reader
    with _lock:
        settle()
        _reader = reader


def settle() -> None:
    """Lets it through: something is about to write. Does nothing without one. Blocks: until it is."""
    global _reader, _is_ending
    if _reader is None:  # it is there until it has ended
        return
    with _lock:
        if _reader is None or _is_ending:
            return
        _is_ending = True
        try:
            _reader.finish()
        finally:
            _reader, _is_ending = None, False


def poll() -> None:
    """Ends it if it is done. Blocks: never."""
    reader = _reader
    if reader is not None and reader.is_done:
        settle()


def _forget_in_child() -> None:
    global _reader, _is_ending, _lock
    _reader, _is_ending, _lock = None, False, threading.RLock()


_fork.forget_in_child(_forget_in_child)
