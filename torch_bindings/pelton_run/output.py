"""The ranks' output, line by line, with the rank before each line; and its way out, which nobody waits for."""

from __future__ import annotations

import fcntl
import os
import re
import select
import stat
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

_END_OF_LINE = re.compile(rb"\r\n|\n|\r")
_LONGEST_PARTIAL_LINE_BYTES = 64 << 10
_KEPT_LINES = 12
_MOST_WAITING_BYTES = 1 << 20
_CHUNK_BYTES = 64 << 10


class LinePrefixer:
    """Turns one stream of a rank into whole lines that begin with a prefix, such as `[rank N] `.

    A carriage return ends a line too, so that a progress bar shows while it moves. Threads: one. Owns: the part of
    a line that has no end yet.
    """

    def __init__(self, prefix: bytes, write: Callable[[bytes], None], recent: deque[bytes]) -> None:
        """Args:
        prefix: begins each line.
        write: takes the lines, with their prefixes.
        recent: receives the last lines, without prefix.
        """
        self._prefix = prefix
        self._write = write
        self._recent = recent
        self._partial = b""

    def feed(self, chunk: bytes) -> None:
        """Writes every line that is complete now."""
        text = self._partial + chunk
        end = 0
        pieces = []
        for match in _END_OF_LINE.finditer(text):
            pieces.append(self._prefix + text[end : match.end()])
            self._recent.append(text[end : match.start()])
            end = match.end()
        self._partial = text[end:]
        if len(self._partial) > _LONGEST_PARTIAL_LINE_BYTES:
            pieces.append(self._prefix + self._partial + b"\n")
            self._partial = b""
        self._write(b"".join(pieces))

    def finish(self) -> None:
        """Writes what is left when the stream has ended."""
        if self._partial:
            self.feed(b"\n")


def recent_lines() -> deque[bytes]:
    """A store for a rank's last lines."""
    return deque(maxlen=_KEPT_LINES)


class OutputQueue:
    """What one of the launcher's descriptors has still to be given.

    A thread writes it, because a write blocks while a pager shows its first page, and setting the descriptor to
    non-blocking would do so for every process that shares it. Threads: `put` and the properties by one, beside its
    own. Owns: the thread and what waits, about a mebibyte at most if its user looks at `is_full`.
    """

    def __init__(self, target: int, on_change: Callable[[], None]) -> None:
        """Args:
        target: the file descriptor.
        on_change: called on the thread when a property may have changed.
        """
        self.target = target
        self._on_change = on_change
        self._changed = threading.Condition()
        self._waiting = bytearray()
        self._is_writing = False
        self._is_broken = False
        self._thread: threading.Thread | None = None

    def put(self, text: bytes) -> None:
        """Adds to what is written. Never blocks. Without effect once nobody reads any more."""
        with self._changed:
            if self._is_broken or not text:
                return
            self._waiting += text
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="pelton output", daemon=True)
            self._thread.start()

    def give_up(self) -> None:
        """Nobody reads any more: what waits, and what is yet to come, is dropped."""
        with self._changed:
            self._is_broken = True
            self._is_writing = False
            self._waiting.clear()
            self._changed.notify()

    @property
    def is_pipe(self) -> bool:
        """Whether the descriptor leads to a pipe's end for writing, and not to a terminal or a file."""
        try:
            is_for_writing = fcntl.fcntl(self.target, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            return is_for_writing and stat.S_ISFIFO(os.fstat(self.target).st_mode)
        except OSError:  # it is closed
            return False

    @property
    def is_full(self) -> bool:
        """Whether so much waits that nothing should be added."""
        with self._changed:
            return len(self._waiting) >= _MOST_WAITING_BYTES

    @property
    def is_empty(self) -> bool:
        """Whether everything has been written."""
        with self._changed:
            return not self._waiting and not self._is_writing

    @property
    def is_broken(self) -> bool:
        """Whether nobody reads any more."""
        with self._changed:
            return self._is_broken

    def _write(self) -> None:
        while not self.is_broken:
            with self._changed:
                self._is_writing = False
                while not self._waiting:
                    if self._is_broken:
                        return
                    self._on_change()
                    self._changed.wait()
                chunk = bytes(self._waiting[:_CHUNK_BYTES])
                del self._waiting[:_CHUNK_BYTES]
                self._is_writing = True
            if not _is_written(self.target, chunk):
                self.give_up()
            self._on_change()


def _is_written(target: int, text: bytes) -> bool:
    """Writes all of `text`, also where the descriptor takes less at a time; False if nobody reads it."""
    view = memoryview(text)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            # The terminal was made non-blocking by somebody else.
            select.select([], [target], [])
        except OSError:  # the pipe is broken, the terminal has hung up, the disk is full
            return False
    return True


def open_log(path: Path) -> IO[bytes]:
    """A file that takes a rank's output; what an earlier job has left there is gone."""
    path.write_bytes(b"")
    return path.open("ab")
