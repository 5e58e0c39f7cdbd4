"""The daemons of a job's ranks on this host: started before the ranks, ended after them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pelton_run.processes import MARK_VARIABLE, TOKEN_VARIABLE, start_rank

PROGRAM_VARIABLE = "PELTON_DAEMON"
_LOOK_SECONDS = 0.01
_DEATH_SECONDS = 20.0  # a killed process closes its connections soon, and its daemon sees that
_LISTEN_SECONDS = 30.0  # a daemon listens before it joins
# The launcher, or the kernel after it, ends them: a script may load its data for as long as it likes.
_NEVER_IDLE_SECONDS = 10**9


def program() -> str:
    """The path of pelton-daemon: PELTON_DAEMON, or the one that was installed with this package.

    Raises:
      FileNotFoundError: there is none; says what to do.
    """
    named = os.environ.get(PROGRAM_VARIABLE)
    path = Path(named) if named else Path(__file__).resolve().parent.parent / "pelton" / "pelton-daemon"
    if os.access(path, os.X_OK):
        return str(path)
    raise FileNotFoundError(
        f"{path} is no program; install pelton with its daemon, or set {PROGRAM_VARIABLE} to pelton-daemon's path"
    )


class PlaceQuestion:
    """Whether the daemon of a rank whose trainer has died keeps its place for another one.

    The daemon is asked again and again until it has seen the death. Nobody stands still for that: who asks calls
    `answer` when a child process has ended, and at `look_again_at`. Threads: one. Owns: the process that asks, and what
    that writes.
    """

    def __init__(self, socket: str, is_last: bool = False) -> None:
        """Args:
        socket: where the daemon listens.
        is_last: no rank has a trainer any more. A daemon does not see the death of one that waits for those of all
          ranks, and would let those that come meet the dead one: that is a place that it keeps, too.
        """
        self._command = [program(), "--socket", socket, "--status", "--json"]
        self._deadline = time.monotonic() + _DEATH_SECONDS
        self._is_last = is_last
        # No pipe: a long status would fill it, because nobody reads it meanwhile.
        self._written = os.memfd_create("status")
        self._asking: subprocess.Popen[bytes] | None = None
        self.look_again_at = 0.0

    def answer(self) -> bool | None:
        """True where it keeps the place; False also where it is gone, or has said nothing for long; None: not yet."""
        now = time.monotonic()
        if self._asking is not None and self._asking.poll() is not None:
            said = self._said()
            self._asking = None
            if said is None or int(said["trainer_pid"]) == 0:
                return said is not None and bool(said["awaits_heir"])
            if self._is_last and not said["trainer_is_welcomed"]:
                return True
            self.look_again_at = now + _LOOK_SECONDS
        if now >= self._deadline:
            return False
        if self._asking is None and now >= self.look_again_at:
            self._ask()
        return None

    def close(self) -> None:
        """Asks no more. Idempotent."""
        if self._asking is not None:
            self._asking.kill()
            self._asking.wait()
            self._asking = None
        if self._written >= 0:
            os.close(self._written)
            self._written = -1

    def _ask(self) -> None:
        os.lseek(self._written, 0, os.SEEK_SET)
        os.truncate(self._written, 0)
        self._asking = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._written, stderr=subprocess.DEVNULL
        )
        self.look_again_at = self._deadline  # or when it has ended, which a signal tells

    def _said(self) -> dict[str, Any] | None:
        """What the daemon says of itself; None: it did not answer."""
        assert self._asking is not None
        if self._asking.returncode != 0:
            return None
        text = os.pread(self._written, os.fstat(self._written).st_size, 0)
        said: dict[str, Any] = json.loads(text)
        return said


class Daemons:
    """One pelton-daemon for each rank of a job on this host.

    The job's token is in their environment and in no rank's. Threads: the launcher's. Owns: the processes and their
    sockets.
    """

    def __init__(self, mark: str, folder: Path, trainer_grace_s: float = 0.0) -> None:
        """Args:
        mark: by which the launcher finds the job's processes again.
        folder: where their sockets lie.
        trainer_grace_s: how long the others wait for another trainer in the place of one that has died.
        """
        self._trainer_grace_s = trainer_grace_s
        self._mark = mark
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._telling: list[subprocess.Popen[bytes]] = []  # daemons of what they need to know; nobody waits for it

    @property
    def pids(self) -> frozenset[int]:
        """Of the daemons that have been started."""
        return frozenset(process.pid for process in self._processes)

    def start(
        self,
        size: int,
        coordinator: str,
        inherited: Mapping[str, str],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Starts the daemons of all ranks. Blocks: until each listens, or the job is over.

        Args:
          size: number of the job's ranks, all of them on this host.
          coordinator: where rank 0's daemon is to serve, as host:port.
          inherited: the launcher's environment.
          is_over: whether the job is to end, which is looked at while this waits.

        Raises:
          OSError: one cannot be started, or has ended; its own lines say why.
        """
        token = secrets.token_hex(16)
        environment = {name: value for name, value in inherited.items() if not name.startswith("TORCHELASTIC_")}
        environment.update({TOKEN_VARIABLE: token, MARK_VARIABLE: self._mark})
        for rank in range(size):
            words = ["--rank", str(rank), "--world-size", str(size), "--coordinator", coordinator]
            words += ["--idle-timeout", str(_NEVER_IDLE_SECONDS)]
            words += ["--trainer-grace", str(self._trainer_grace_s)]
            command = [program(), "--socket", self._socket(rank), *words]
            with open(os.devnull, "wb") as nothing, open(2, "wb", closefd=False) as errors:
                self._processes.append(start_rank(command, environment, nothing, errors))
        for rank, process in enumerate(self._processes):
            self._await_socket(rank, process, is_over)

    def revive(
        self,
        size: int,
        coordinator: str,
        inherited: Mapping[str, str],
        grace_s: float,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Starts all of them anew if one has ended, because the job of the others has failed with it, or if one keeps
        the place of a trainer that has died: the next one would go on where that was, or the others' meet the dead
        one, and the other ranks begin anew.

        Args:
          size: as for `start`.
          coordinator: as for `start`.
          inherited: as for `start`.
          grace_s: as for `stop`.
          is_over: whether the job is to end, which is looked at while this waits for daemons; then it returns.

        Raises:
          OSError: as `start`.
        """
        self._end_telling(is_over)
        if any(process.poll() is not None for process in self._processes) or self._keeps_a_place(is_over):
            self.stop(grace_s)
            if not is_over():
                self.start(size, coordinator, inherited, is_over)

    def ask_for_place(self, local_rank: int) -> PlaceQuestion | None:
        """Asks whether the daemon of a rank whose trainer has died keeps its place for another one. Does not block.

        Args:
          local_rank: the rank's number on this node.

        Returns:
          The question, which the caller closes; None where no daemon ever keeps one.
        """
        return PlaceQuestion(self._socket(local_rank)) if self._trainer_grace_s > 0 else None

    def tell_of_no_heir(self, local_rank: int) -> None:
        """Nobody starts another trainer in the place of a rank's: the others are not to wait for it. Does not block.

        Args:
          local_rank: the rank's number on this node.
        """
        if self._trainer_grace_s > 0:
            command = [program(), "--socket", self._socket(local_rank), "--no-heir"]
            self._telling.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def _end_telling(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Blocks: until the daemons know, or are gone, or the job is over, for some seconds at most."""
        deadline = time.monotonic() + _DEATH_SECONDS
        while any(telling.poll() is None for telling in self._telling):
            if is_over() or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        for telling in self._telling:
            telling.kill()
            telling.wait()
        self._telling.clear()

    def _keeps_a_place(self, is_over: Callable[[], bool]) -> bool:
        """Whether any daemon does; no trainer lives any more. Blocks: until all have seen that, or the job is over, for
        some seconds.
        """
        open_questions = [PlaceQuestion(self._socket(rank), is_last=True) for rank in range(len(self._processes))]
        with contextlib.ExitStack() as stack:
            for question in open_questions:
                stack.callback(question.close)
            while open_questions and not is_over():  # all at once, so that they wait for one patience together
                answers = [(question, question.answer()) for question in open_questions]
                if any(answer for _, answer in answers):
                    return True
                open_questions = [question for question, answer in answers if answer is None]
                if open_questions:
                    time.sleep(_LOOK_SECONDS)
        return False

    def variables_of(self, local_rank: int) -> dict[str, str]:
        """By which a rank finds its daemon."""
        return {"PELTON_COORDINATOR": f"unix:{self._socket(local_rank)}", MARK_VARIABLE: self._mark}

    def stop(self, grace_s: float) -> None:
        """Ends them, and removes their sockets. Idempotent. Blocks: until they have ended, at most `grace_s` or so."""
        self._end_telling()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        for path in self._folder.glob("*"):
            if path.is_socket():  # of one that was killed: nobody must wait there
                path.unlink(missing_ok=True)

    def _socket(self, rank: int) -> str:
        return str(self._folder / str(rank))

    def _await_socket(self, rank: int, process: subprocess.Popen[bytes], is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _LISTEN_SECONDS
        while not os.path.exists(self._socket(rank)) and not is_over():
            code = process.poll()
            if code is not None or time.monotonic() > deadline:
                what = "does not listen" if code is None else f"ended with code {code}"
                raise ChildProcessError(f"the pelton-daemon of rank {rank} {what}; its own lines say why")
            time.sleep(_LOOK_SECONDS)
