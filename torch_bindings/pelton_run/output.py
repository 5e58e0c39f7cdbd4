"""The ranks' output, line by line, with the rank before each line."""

from __future__ import annotations

import os
import re
from collections import deque

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")
_LONGEST_PARTIAL_LINE_BYTES = 64 << 10
_KEPT_LINES = 12


class LinePrefixer:
    """Turns one stream of a rank into whole lines that begin with `[rank N] `.

    A carriage return ends a line too, so that a progress bar shows while it moves. Threads: one. Owns: the part of
    a line that has no end yet.
    """

    def __init__(self, rank: int, target: int, recent: deque[bytes]) -> None:
        """Args:
        rank: number to be shown.
        target: file descriptor that the lines are written to.
        recent: receives the last lines, without prefix.
        """
        self._prefix = b"[rank %d] " % rank
        self._target = target
        self._recent = recent
        self._partial = b""

    def feed(self, chunk: bytes) -> None:
        """Writes every line that is complete now.

        Raises:
          BrokenPipeError: nobody reads the launcher's output any more.
        """
        text = self._partial + chunk
        end = 0
        pieces = []
        for match in _LINE.finditer(text):
            pieces.append(self._prefix + match.group())
            self._recent.append(match.group().rstrip(b"\r\n"))
            end = match.end()
        self._partial = text[end:]
        if len(self._partial) > _LONGEST_PARTIAL_LINE_BYTES:
            pieces.append(self._prefix + self._partial + b"\n")
            self._partial = b""
        write_all(self._target, b"".join(pieces))

    def finish(self) -> None:
        """Writes what is left when the stream has ended."""
        if self._partial:
            self.feed(b"\n")


def recent_lines() -> deque[bytes]:
    """A store for a rank's last lines."""
    return deque(maxlen=_KEPT_LINES)


def write_all(target: int, text: bytes) -> None:
    """Writes all of `text`, also where the descriptor takes less at a time."""
    view = memoryview(text)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            # The terminal was made non-blocking by somebody else.
            import select

            select.select([], [target], [])
