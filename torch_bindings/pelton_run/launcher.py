"""One job: its ranks, their output, and its orderly end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pelton_run.daemons import Daemons, PlaceQuestion
from pelton_run.ending import Ending
from pelton_run.job_folder import FOLDER_VARIABLE, JobFolder
from pelton_run.output import LinePrefixer, OutputQueue, open_log, recent_lines
from pelton_run.ports import LOOPBACK, port_of, reserve_port
from pelton_run.processes import MARK_VARIABLE, TOKEN_VARIABLE, Guard, exit_text, kill_job, signal_group, start_rank
from pelton_run.snapshots import RESTARTS_VARIABLE, SnapshotBuffers
from pelton_run.stacks import state_of

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_NO_SIGNAL = 0
_ONE_BLOW_S = 0.5  # a terminal that closes sends SIGHUP twice; a user who insists takes longer
# Open MPI's names of what torchrun's variables say.
OPEN_MPIS_NAMES = {
    "OMPI_COMM_WORLD_RANK": "RANK",
    "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_NODE_RANK": "LOCAL_RANK",
}
_INPUT = object()  # what the selector says of standard input
_CHUNK_BYTES = 64 << 10
_LAST_CHUNKS = 16  # a pipe's content; a descendant may go on writing


@dataclass(frozen=True)
class Place:
    """Where the ranks of this host stand in the job. Threads: a value. Owns: its fields."""

    nodes: int = 1
    node_rank: int = 0
    master: str = LOOPBACK  # where rank 0 is reached
    master_port: int | None = None  # None, on one node alone: a free one


@dataclass(frozen=True)
class JobOptions:
    """What to start and how long to be patient. Threads: a value. Owns: its fields."""

    command: Sequence[str]
    local_size: int  # ranks on this node
    linger_s: float = 5.0  # between the first failure and SIGTERM: survivors say what they saw
    grace_s: float = 10.0  # between SIGTERM and SIGKILL
    is_insecure: bool = False  # the token may cross a network in clear
    place: Place = Place()
    variables: Mapping[str, str] = field(default_factory=dict)  # set for every rank
    further_names: Mapping[str, str] = field(default_factory=dict)  # of variables that every rank has
    log_folder: Path | None = None  # takes the ranks' output instead of the launcher's; without restarts
    local_rank_at: int | None = None  # index of the command where --local_rank=N is put in
    ends_with_input: bool = False  # the end of standard input ends the job as SIGTERM does
    program: str = "pelton run"  # which the launcher's own lines begin with
    has_daemons: bool = False  # each rank's backend works in a pelton-daemon; on one node
    max_restarts: int = 0  # of all ranks, when one has failed; on one node
    trainer_grace_s: float = 0.0  # how long ranks wait for one of them to be started again alone; with daemons

    def command_of(self, local_rank: int) -> list[str]:
        """The command line of one rank."""
        words = list(self.command)
        if self.local_rank_at is not None:
            words.insert(self.local_rank_at, f"--local_rank={local_rank}")
        return words


@dataclass
class Rank:
    """A started rank. Threads: the launcher's. Owns: its process."""

    label: str  # its number, for people
    prefix: bytes  # of its output's lines
    process: subprocess.Popen[bytes]
    local_rank: int = 0
    log: Path | None = None  # takes its standard error
    recent: deque[bytes] = field(default_factory=recent_lines)
    code: int | None = None  # as subprocess has it: negative for a signal
    place: PlaceQuestion | None = None  # while its daemon is asked whether another one may take its place
    is_undecided: bool = False  # what follows from its end
    is_killed: bool = False  # SIGKILL was sent

    @property
    def is_open(self) -> bool:
        """Whether it has not ended, or it is yet to be decided what follows from its end."""
        return self.code is None or self.is_undecided


@dataclass
class _Stream:
    """Standard output or error of a rank. Threads: the launcher's. Owns: what the prefixer keeps."""

    rank: Rank
    pipe: IO[bytes]
    prefixer: LinePrefixer
    queue: OutputQueue
    is_read: bool = False  # not while its queue is full, so that its rank waits as it would for any slow reader


def rank_environment(
    inherited: Mapping[str, str], local_rank: int, local_size: int, place: Place, meeting: Mapping[str, str]
) -> dict[str, str]:
    """The environment of one rank: torchrun's variables, and where Pelton's ranks meet.

    Args:
      inherited: that of the launcher.
      local_rank: the rank's number on this node.
      local_size: number of ranks on each node.
      place: of this node, with a port.
      meeting: the variables by which Pelton's ranks meet, and by which the launcher knows its processes again.

    Source: "Environment Variables" of torchrun's documentation.
    """
    environment = {
        name: value
        for name, value in inherited.items()
        if not name.startswith("TORCHELASTIC_") and name not in ("PELTON_COORDINATOR", TOKEN_VARIABLE)
    }
    rank, world_size = place.node_rank * local_size + local_rank, place.nodes * local_size
    numbers = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": local_size,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "GROUP_RANK": place.node_rank,
        "GROUP_WORLD_SIZE": place.nodes,
        "NODE_RANK": place.node_rank,
        "MASTER_PORT": place.master_port,
    }
    environment.update({name: str(number) for name, number in numbers.items()})
    environment.update(ROLE_NAME="default", MASTER_ADDR=place.master, **meeting)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    if local_size > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


class Job:
    """Starts the ranks, forwards output and signals, and ends all of them when one fails.

    Threads: the main thread only, because of the signals. Owns: the ranks' processes and pipes, the reserved ports,
    the guard.
    """

    kind = "rank"  # of what is started, for people

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._token = secrets.token_hex(16)
        self._selector = selectors.DefaultSelector()
        self._ranks: list[Rank] = []
        self._undecided: deque[Rank] = deque()  # in the order of their deaths
        self._streams: list[_Stream] = []
        self._outputs: dict[int, OutputQueue] = {}
        self._spared: frozenset[int] = frozenset()
        self._first_failure: Rank | None = None
        self._signal: int | None = None  # the first that is to end the job
        self._signal_at = 0.0  # when the last such one came
        self._signals = -1  # the pipe that they come through
        self._term_at: float | None = None
        self._kill_at: float | None = None
        self._started = time.monotonic()
        self._folder: JobFolder | None = None
        self._daemons: Daemons | None = None
        self._coordinator = ""
        self._restarts = 0
        self._snapshots: SnapshotBuffers | None = None
        self._start_again: Callable[[], None] | None = None  # None: a failure is final
        self._start_one: Callable[[int], None] | None = None

    def run(self) -> int:
        """Runs the job to its end.

        Returns:
          The exit code: 0, that of the first rank that failed (128 + n for signal n), or 128 + n if signal n ended
          the job.

        Raises:
          OSError: the command cannot be started.
        """
        guard = Guard(self._token)
        with contextlib.ExitStack() as stack:
            stack.callback(guard.dismiss)
            stack.callback(self._reap)
            stack.callback(lambda: kill_job(self._token, spared=self._spared))
            self._catch_signals(stack)
            self._start(stack)
            self._serve()
            return self._exit_code()

    def run_or_say(self, program: str, started: str) -> int:
        """`run`; 2, and a line on standard error, where the command cannot be started.

        Args:
          program: what the line begins with.
          started: the name of the command.
        """
        try:
            return self.run()
        except OSError as error:
            print(f"{program}: {started}: {error}", file=sys.stderr)
            return 2

    @property
    def failed_code(self) -> int | None:
        """How the rank ended that failed first, as subprocess has it: negative for a signal; None if none failed."""
        return None if self._first_failure is None else self._first_failure.code

    def _start(self, stack: contextlib.ExitStack) -> None:
        self._folder = JobFolder(self._token)  # the guard removes it, should the launcher be killed
        stack.callback(self._folder.close)
        place, meeting = self._meeting(stack)
        if self._options.max_restarts > 0:
            self._snapshots = SnapshotBuffers(self._options.local_size)
            stack.callback(self._snapshots.close)
            self._start_again = lambda: self._start_ranks(place, meeting)
            self._start_one = lambda local_rank: self._start_rank(local_rank, place, meeting)
        self._start_ranks(place, meeting)

    def _meeting(self, stack: contextlib.ExitStack) -> tuple[Place, dict[str, str]]:
        """The place with a port, and the variables by which the ranks meet and the launcher knows its processes.

        On one node that is a coordinator on loopback. Ranks on several nodes meet through the store at the master's
        port, which makes a token of its own; the mark that the launcher needs is no secret then.
        """
        place = self._options.place
        if place.master_port is None:
            place = dataclasses.replace(place, master_port=port_of(stack.enter_context(reserve_port())))
        if place.nodes > 1:
            return place, {MARK_VARIABLE: self._token}
        coordinator = self._coordinator = f"{LOOPBACK}:{port_of(stack.enter_context(reserve_port()))}"
        if self._options.has_daemons:
            assert self._folder is not None
            self._daemons = Daemons(self._token, self._folder.path, self._options.trainer_grace_s)
            stack.callback(self._daemons.stop, self._options.grace_s)
            self._daemons.start(self._options.local_size, coordinator, os.environ)
            return place, {}  # the token is in no rank's environment
        return place, {"PELTON_COORDINATOR": coordinator, TOKEN_VARIABLE: self._token}

    def _start_ranks(self, place: Place, meeting: Mapping[str, str]) -> None:
        for local_rank in range(self._options.local_size):
            self._start_rank(local_rank, place, meeting)

    def _start_rank(self, local_rank: int, place: Place, meeting: Mapping[str, str]) -> None:
        size = self._options.local_size
        environment = rank_environment(os.environ, local_rank, size, place, meeting)
        environment.update(self._options.variables)
        if self._folder is not None:
            environment[FOLDER_VARIABLE] = str(self._folder.path)
        if self._daemons is not None:
            environment.update(self._daemons.variables_of(local_rank))
        environment.update({name: environment[same] for name, same in self._options.further_names.items()})
        if self._options.is_insecure:
            environment["PELTON_INSECURE"] = "1"
        descriptors: Sequence[int] = ()
        if self._snapshots is not None:
            environment.update(self._snapshots.variables_of(local_rank))
            environment[RESTARTS_VARIABLE] = str(self._restarts)
            descriptors = self._snapshots.of(local_rank)
        command = self._options.command_of(local_rank)
        number = place.node_rank * size + local_rank
        with contextlib.ExitStack() as logs:
            paths = self._log_paths(local_rank)
            output, errors = (logs.enter_context(open_log(path)) if path else None for path in paths)
            process = start_rank(command, environment, output, errors, descriptors=descriptors)
        rank = Rank(str(number), b"[rank %d] " % number, process, local_rank, log=paths[1])
        self._ranks.append(rank)
        if rank.log is None:
            self._follow(rank)

    def _log_paths(self, local_rank: int) -> tuple[Path | None, Path | None]:
        """Where a rank's output and errors go, if not through the launcher; the folder is made."""
        folder = self._options.log_folder
        if folder is None:
            return None, None
        folder.mkdir(parents=True, exist_ok=True)
        begin = f"node_{self._options.place.node_rank}_local_rank_{local_rank}"
        return folder / f"{begin}_stdout", folder / f"{begin}_stderr"

    def _count(self) -> str:
        """Which of the restarts the last one was, for people."""
        return f"for the {self._restarts}. of at most {self._options.max_restarts} times"

    def _follow(self, rank: Rank) -> None:
        """Reads a rank's output from now on."""
        for pipe, target in ((rank.process.stdout, 1), (rank.process.stderr, 2)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            queue = self._outputs[target]
            self._streams.append(_Stream(rank, pipe, LinePrefixer(rank.prefix, queue.put, rank.recent), queue))

    def _catch_signals(self, stack: contextlib.ExitStack) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        previous_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, previous_wakeup)
        for number in (*_FORWARDED, signal.SIGCHLD):
            if number in _FORWARDED and signal.getsignal(number) == signal.SIG_IGN:
                continue  # as nohup has it, and a script its background jobs: the ranks inherit it
            # The byte in the pipe is what counts; a handler in Python only keeps the default from acting.
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: None))
        self._selector.register(reader, selectors.EVENT_READ, None)
        self._signals = reader

        def wake() -> None:
            with contextlib.suppress(BlockingIOError):  # full: then it wakes anyway
                os.write(writer, bytes([_NO_SIGNAL]))

        self._outputs = {target: OutputQueue(target, wake) for target in (1, 2)}
        for queue in self._outputs.values():
            if queue.is_pipe:  # is never readable, but tells at once when its reader goes, though no rank prints
                self._selector.register(queue.target, selectors.EVENT_READ, queue)
        if self._options.ends_with_input:
            self._selector.register(0, selectors.EVENT_READ, _INPUT)

    def _serve(self) -> None:
        """Until every rank has ended, its output is through, and what it has left behind is gone or spared."""
        ending = Ending(self._token, self._options.grace_s, self._say)
        while True:
            open_ranks = [rank for rank in self._ranks if rank.is_open]
            if not open_ranks and self._may_restart():
                self._restart()
                continue
            if not open_ranks:
                if self._daemons is not None:  # they carry the mark, and are nothing that a rank has left behind
                    self._daemons.stop(self._options.grace_s)
                ending.advance(is_orderly=self._first_failure is None and self._signal is None)
                self._spared = ending.spared
                if ending.is_over(self._is_drained(), self._signal is not None, self._is_behind()):
                    return
            self._choose_streams()
            for key, _ in self._selector.select(self._patience(ending.look_again_at)):
                self._on_ready(key)
            for rank in open_ranks:
                if rank.code is None:
                    self._on_exit(rank, rank.process.poll())
            self._decide_ends()
            if self._signal is None and any(queue.is_broken for queue in self._outputs.values()):
                self._on_signal(signal.SIGTERM)
            self._escalate()

    def _may_restart(self) -> bool:
        has_failed = self._first_failure is not None and self._signal is None
        return has_failed and self._start_again is not None and self._restarts < self._options.max_restarts

    def _restart(self) -> None:
        """Starts all ranks again, once what the former ones have left behind is gone; the daemons live on."""
        assert self._start_again is not None
        kill_job(self._token, spared=self._daemons.pids if self._daemons is not None else ())
        self._restarts += 1
        self._say(f"starting all ranks again, {self._count()}; {self._where_they_begin()}")
        size, grace_s = self._options.local_size, self._options.grace_s
        try:
            if self._daemons is not None:
                self._daemons.revive(size, self._coordinator, os.environ, grace_s, is_over=self._take_signals)
        except ChildProcessError as error:  # one has died while it started
            if self._restarts >= self._options.max_restarts:
                raise
            self._say(str(error))
            self._restart()
            return
        if self._take_signals():  # then the failure that this was to follow is the last one
            return
        self._first_failure = self._term_at = self._kill_at = None
        self._ranks.clear()
        self._start_again()

    def _where_they_begin(self) -> str:
        assert self._snapshots is not None
        if all(self._snapshots.holds(rank) for rank in range(self._options.local_size)):
            return "they go on from the newest step that all of them have kept"
        return "not all have kept a snapshot (checkpoint.Snapshots), so that they begin where the script does"

    def _on_ready(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            self._take_signals()
        elif key.data is _INPUT:
            if not os.read(key.fd, _CHUNK_BYTES):
                self._selector.unregister(key.fileobj)
                self._on_signal(signal.SIGTERM)
        elif isinstance(key.data, OutputQueue):
            self._selector.unregister(key.fileobj)
            key.data.give_up()
        else:
            self._read(key.data)

    def _is_drained(self) -> bool:
        return not self._streams and not self._is_behind()

    def _is_behind(self) -> bool:
        """Whether the reader of the launcher's output has not taken all that it was given."""
        return not all(queue.is_empty for queue in self._outputs.values())

    def _choose_streams(self) -> None:
        for stream in self._streams:
            wants = not stream.queue.is_full
            if wants and not stream.is_read:
                self._selector.register(stream.pipe, selectors.EVENT_READ, stream)
            elif stream.is_read and not wants:
                self._selector.unregister(stream.pipe)
            stream.is_read = wants

    def _patience(self, look_again_at: float | None) -> float | None:
        questions = [rank.place.look_again_at for rank in self._ranks if rank.place is not None]
        deadlines = [d for d in (self._term_at, self._kill_at, look_again_at, *questions) if d is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _read(self, stream: _Stream) -> bool:
        """Takes a piece of a rank's output; False if there is none now."""
        try:
            chunk = os.read(stream.pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if chunk:
            stream.prefixer.feed(chunk)
            return True
        stream.prefixer.finish()
        if stream.is_read:
            self._selector.unregister(stream.pipe)
        self._streams.remove(stream)
        return False

    def _take_signals(self) -> bool:
        """Serves those that have come; whether one of them ends the job."""
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._signals, 256):
                self._on_signal(number)
        return self._signal is not None

    def _on_signal(self, number: int) -> None:
        if number in (_NO_SIGNAL, signal.SIGCHLD):
            return
        if number not in _ENDING:
            self._pass_on(number)
            return
        again = self._signal is not None
        now = time.monotonic()
        if again and now - self._signal_at < _ONE_BLOW_S:
            return
        self._signal, self._signal_at = self._signal or number, now
        self._signal_all(signal.SIGKILL if again else number)
        self._term_at = None
        self._kill_at = now + self._options.grace_s

    def _pass_on(self, number: int) -> None:
        """A signal by which no job ends."""
        for rank in self._ranks:
            if rank.code is None:
                rank.process.send_signal(number)

    def _on_exit(self, rank: Rank, code: int | None) -> None:
        if code is None:
            return
        rank.code = code
        for stream in [stream for stream in self._streams if stream.rank is rank]:
            for _ in range(_LAST_CHUNKS):  # what is told of its end needs its last lines
                if not self._read(stream):
                    break
        ended_by_us = self._signal is not None or self._kill_at is not None
        if code == 0 or ended_by_us:
            self._tell_of_no_heir(rank)
            return
        after = time.monotonic() - self._started
        self._say(f"{self.kind} {rank.label} (pid {rank.process.pid}) {exit_text(code)} after {after:.1f} s")
        if self._first_failure is None:
            rank.place = self._ask_for_place(rank)
        rank.is_undecided = True
        self._undecided.append(rank)

    def _tell_of_no_heir(self, rank: Rank) -> None:
        """To its daemon, which keeps the place of a trainer that went without a goodbye."""
        if self._daemons is not None and self._signal is None:
            self._daemons.tell_of_no_heir(rank.local_rank)

    def _ask_for_place(self, rank: Rank) -> PlaceQuestion | None:
        """Asks the daemon of a rank that has failed whether it keeps its place; None: nobody would be started."""
        if self._start_one is None or self._daemons is None or self._restarts >= self._options.max_restarts:
            return None
        signal_group(rank.process, signal.SIGKILL)  # what it has started and left behind, a trainer perhaps
        return self._daemons.ask_for_place(rank.local_rank)

    def _decide_ends(self) -> None:
        """Decides what follows from the ends of ranks in the order of their deaths, because the first is the cause of
        the others. Does not block: the others' output, ends and signals are served until a daemon has answered.
        """
        while self._undecided and self._decide(self._undecided[0]):
            self._undecided.popleft().is_undecided = False

    def _decide(self, rank: Rank) -> bool:
        """Whether it is decided if a rank that has failed is started again alone; not before its daemon has said
        whether it keeps its place.
        """
        is_over = self._first_failure is not None or self._signal is not None  # then none is started any more
        asked = None if is_over else rank.place
        keeps = asked is not None and asked.answer()
        if keeps is None:
            return False
        if rank.place is not None:
            rank.place.close()
            rank.place = None
        if keeps and self._restarts < self._options.max_restarts:
            self._replace(rank)
        elif self._signal is None:
            if asked is not None:
                why = self._why_not_alone(rank, keeps)
                self._say(f"{self.kind} {rank.label} cannot be started again alone: {why}")
            self._fail(rank)
        return True

    def _why_not_alone(self, rank: Rank, keeps: bool) -> str:
        assert self._snapshots is not None
        if keeps:
            return f"the restarts are used up ({self._count()})"
        if not self._snapshots.holds(rank.local_rank):
            return "it has kept no snapshot (checkpoint.Snapshots) that another one could go on from"
        return "its daemon keeps no place for another one (docs/daemon.md says when)"

    def _replace(self, rank: Rank) -> None:
        """Starts a rank again whose daemon keeps its place, while the others wait for it."""
        assert self._start_one is not None
        self._restarts += 1
        self._say(f"starting {self.kind} {rank.label} again, {self._count()}; the others wait for it")
        self._ranks.remove(rank)
        self._start_one(rank.local_rank)

    def _fail(self, rank: Rank) -> None:
        """Nobody comes in the place of a rank that has failed, and with the first such one all end."""
        self._tell_of_no_heir(rank)
        if self._first_failure is None:
            self._first_failure = rank
            self._on_first_failure(rank)

    def _on_first_failure(self, failed: Rank) -> None:
        if failed.log is not None:
            self._say(f"what it said is in {failed.log}")
        if failed.recent:
            self._say("its last lines:")
            for line in failed.recent:
                self._say("  " + line.decode(errors="replace"))
        left = [rank.label for rank in self._ranks if rank.code is None]
        if left:
            wait = self._options.linger_s
            self._say(f"ending the others ({self.kind} {', '.join(left)}) in {wait:g} s, unless they end by themselves")
            self._term_at = time.monotonic() + wait

    def _escalate(self) -> None:
        now = time.monotonic()
        if self._term_at is not None and now >= self._term_at:
            self._term_at = None
            self._kill_at = now + self._options.grace_s
            self._signal_all(signal.SIGTERM)
        elif self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + self._options.grace_s
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for rank in self._ranks:
            if rank.code is None:
                if rank.is_killed:
                    state = f"its state is {state_of(rank.process.pid)}; in D it waits for a disk or a device"
                    self._say(f"{self.kind} {rank.label} (pid {rank.process.pid}) was killed and does not end; {state}")
                rank.is_killed = number == signal.SIGKILL
                signal_group(rank.process, number)

    def _reap(self) -> None:
        for rank in self._ranks:
            rank.process.wait()
            if rank.place is not None:
                rank.place.close()
        self._selector.close()

    def _exit_code(self) -> int:
        if self._first_failure is not None:
            code = self._first_failure.code or 0
            return code if code >= 0 else 128 - code
        if self._signal is not None and any(rank.code for rank in self._ranks):
            return 128 + self._signal
        return 0

    def _say(self, text: str) -> None:
        self._outputs[2].put(f"{self._options.program}: {text}\n".encode())
