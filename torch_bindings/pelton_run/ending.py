"""The end of a job: what its ranks have left behind, and how long that is waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from pelton_run.processes import describe, is_detached, kill_job, processes_of

_DRAIN_SECONDS = 2.0
_LOOK_SECONDS = 0.1  # between looks at what successful ranks have left behind


class Ending:
    """From the last rank's end to the launcher's.

    After a failure or a signal everything that carries the token is killed. After success it may be an upload or a
    synchronisation that a rank has started, so it has time; and who has taken a session of its own means to go on.
    Threads: the launcher's. Owns: nothing.
    """

    def __init__(self, token: str, grace_s: float, say: Callable[[str], None]) -> None:
        """Args:
        token: that of the job.
        grace_s: how long what is left has to end by itself, and again after SIGTERM.
        say: tells the user something.
        """
        self._token = token
        self._grace_s = grace_s
        self._say = say
        self._is_rid = False
        self._term_at: float | None = None
        self._kill_at: float | None = None
        self._drain_until = 0.0
        self.spared: frozenset[int] = frozenset()
        self.look_again_at: float | None = None

    def advance(self, is_orderly: bool) -> None:
        """Goes on as far as it can now.

        Args:
          is_orderly: no rank has failed, and no signal has come.
        """
        if self._is_rid:
            return
        now = time.monotonic()
        if not is_orderly:
            kill_job(self._token, spared=self.spared)
        left = self._left() if is_orderly else []
        if not left:
            self._is_rid = True
            self._drain_until = now + _DRAIN_SECONDS
            return
        self.look_again_at = now + _LOOK_SECONDS
        self._press(left, now)

    def is_over(self, is_drained: bool, was_signalled: bool, is_behind: bool) -> bool:
        """Whether the launcher may end.

        Args:
          is_drained: all output has been read and written.
          was_signalled: the user wants the end, whatever is still unread.
          is_behind: the reader of the launcher's output has not taken all of it.
        """
        if not self._is_rid:
            return False
        now = time.monotonic()
        if is_behind and not was_signalled:  # in a pager, perhaps; a descendant that holds a pipe has its time after
            self._drain_until = now + _DRAIN_SECONDS
        self.look_again_at = self._drain_until
        return is_drained or now > self._drain_until

    def _left(self) -> list[int]:
        """The processes that are waited for; others are told once and spared."""
        pids = [pid for pid in processes_of(self._token) if pid not in self.spared]
        detached = frozenset(pid for pid in pids if is_detached(pid))
        if detached:
            self.spared |= detached
            self._say(f"left running, in sessions of their own: {', '.join(map(describe, sorted(detached)))}")
        return [pid for pid in pids if pid not in detached]

    def _press(self, left: list[int], now: float) -> None:
        if self._term_at is None:
            self._term_at = now + self._grace_s
            names = ", ".join(map(describe, left))
            self._say(f"all ranks have ended; waiting {self._grace_s:g} s for what they have left running: {names}")
        elif self._kill_at is None and now >= self._term_at:
            self._kill_at = now + self._grace_s
            self._say(f"ending {', '.join(map(describe, left))}")
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)
        elif self._kill_at is not None and now >= self._kill_at:
            kill_job(self._token, spared=self.spared)
            left = self._left()
            if left:  # such a one hangs in the kernel, in a file system perhaps whose server is gone
                self._say(f"could not be ended, and is left: {', '.join(map(describe, left))}")
                self.spared |= frozenset(left)
