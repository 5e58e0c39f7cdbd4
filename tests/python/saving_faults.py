"""The operating system, which fails at one of the operations that it is asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

COUNTED = ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir")


class Faulty:
    """Stands for the module `os`. Threads: one. Owns: a count of operations."""

    def __init__(self, at: int, fail: Callable[[], Any] | None = None) -> None:
        """Args:
        at: the number of the operation that fails, from 0; a negative one: none.
        fail: what happens instead of it; None: the disk is full.
        """
        self._at = at
        self._fail = _no_space if fail is None else fail
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name not in COUNTED:
            return found

        def counted(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self._at + 1:
                if name == "write":  # a part of it is on the disk then
                    found(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                self._fail()
            return found(*arguments, **options)

        return counted


def _no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
