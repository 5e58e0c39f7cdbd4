"""Jobs of two ranks in which rank 0 waits for rank 1: `waits.py NAME RESULTS_FOLDER`, one scenario a job.

What has to happen while rank 0 waits is done when Pelton tells of the stall (PELTON_STALL_SECONDS is short), because
that line comes from within the wait and from nowhere else.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pelton
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from pelton.distributed import Store
from torch import nn

from cases.checks import batch, square_loss, wrap

TIMEOUT_S = 60.0
SHORT_TIMEOUT_S = 2.0
Report = dict[str, Any]


class Raised(BaseException):
    """What the handler of SIGUSR1 raises."""


class Folder:
    """Where the ranks leave word for each other. Threads: any. Owns: nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def leave(self, word: str) -> None:
        (self._path / word).touch()

    def wait(self, word: str) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not (self._path / word).exists():
            assert time.monotonic() < end, f"nobody said '{word}'"
            time.sleep(0.01)

    def report(self, report: Report) -> None:
        (self._path / f"{bagua.get_rank()}.json").write_text(json.dumps(report))


def _when_it_waits(action: Callable[[str], None]) -> None:
    """Has `action` called with the first line that tells of a stall."""
    lines: list[str] = []

    def hear(level: int, line: str) -> None:
        if level < logging.WARNING:
            return
        lines.append(line)
        if len(lines) == 1:
            action(line)

    pelton.set_log_callback(hear)


def _outcome(wait: Callable[[], object]) -> Report:
    """What a wait ended with."""
    try:
        wait()
    except BaseException as error:
        return {"type": type(error).__name__, "text": str(error), "at": time.monotonic()}
    return {"type": "", "text": "", "at": time.monotonic()}


def _interrupted(folder: Folder, wait: Callable[[], object], number: int = signal.SIGINT) -> Report:
    """Rank 0 waits and gets a signal; rank 1 comes when that is over."""
    if bagua.get_rank() != 0:
        folder.wait("interrupted")
        return _outcome(wait)
    sent: list[float] = []

    def send(line: str) -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    _when_it_waits(send)
    report = _outcome(wait)
    report["seconds"] = report["at"] - sent[0] if sent else -1.0
    folder.leave("interrupted")
    return report


def _step(model: Any) -> None:
    square_loss(model, batch(bagua.get_rank(), 0, 4, 6)).backward()


def _model() -> Any:
    return wrap(nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)))


def _join_torch() -> None:
    dist.init_process_group("pelton", store=Store(), rank=bagua.get_rank(), world_size=bagua.get_world_size())


def sigint_in_backward(folder: Folder) -> Report:
    """Ctrl-C at the end of backward."""
    model = _model()
    _step(model)
    return _interrupted(folder, lambda: _step(model))


def sigint_in_a_barrier(folder: Folder) -> Report:
    """Ctrl-C in a collective of the user's."""
    return _interrupted(folder, bagua.barrier)


def sigint_in_a_torch_wait(folder: Folder) -> Report:
    """Ctrl-C in the wait for a work object of torch.distributed."""
    _join_torch()
    return _interrupted(folder, lambda: cast(Any, dist.all_reduce(torch.ones(1000), async_op=True)).wait())


def sigint_in_a_torch_call(folder: Folder) -> Report:
    """Ctrl-C in a call of torch.distributed that waits by itself."""
    _join_torch()
    return _interrupted(folder, lambda: dist.all_reduce(torch.ones(1000)))


def sigint_while_a_group_opens(folder: Folder) -> Report:
    """Ctrl-C in the wait for the members of a group."""
    return _interrupted(folder, bagua.new_group if bagua.get_rank() == 0 else bagua.barrier)


def a_handler_raises(folder: Folder) -> Report:
    """Another signal, and an exception of the user's own."""

    def throw(*_: object) -> None:
        raise Raised("from a handler")

    signal.signal(signal.SIGUSR1, throw)
    return _interrupted(folder, bagua.barrier, signal.SIGUSR1)


def a_handler_returns(folder: Folder) -> Report:
    """The wait goes on, and ends well."""
    handled: list[str] = []

    def note(*_: object) -> None:
        handled.append(_outcome(bagua.barrier)["type"])  # no place for it
        folder.leave("interrupted")

    signal.signal(signal.SIGUSR1, note)
    report = _interrupted(folder, bagua.barrier, signal.SIGUSR1)
    return report | {"handled": handled}


def _told(folder: Folder, wait: Callable[[], object]) -> Report:
    """Rank 0 waits until that is told; then rank 1 comes, and both go on."""
    if bagua.get_rank() != 0:
        folder.wait("told")
        return _outcome(wait)
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        folder.leave("told")

    _when_it_waits(note)
    return _outcome(wait) | {"lines": lines}


def a_stall_in_backward(folder: Folder) -> Report:
    """The line names the model, its round, the bucket and the rank."""
    model = _model()
    _step(model)
    return _told(folder, lambda: _step(model))


def a_stall_in_a_barrier(folder: Folder) -> Report:
    """The line names the call, its group and the rank."""
    return _told(folder, bagua.barrier)


def a_stall_in_a_torch_call(folder: Folder) -> Report:
    """The line names torch's call."""
    _join_torch()
    return _told(folder, dist.barrier)


def a_stall_while_a_group_opens(folder: Folder) -> Report:
    """The line says which ranks are to come."""
    return _told(folder, bagua.new_group)


class _Watched:
    """Standard error that leaves word of a line. Threads: any. Owns: nothing."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def write(self, text: str) -> int:
        if "has waited" in text:
            self._folder.leave("told")
        return sys.__stderr__.write(text) if sys.__stderr__ is not None else 0

    def flush(self) -> None:
        if sys.__stderr__ is not None:
            sys.__stderr__.flush()


def a_stall_without_logging(folder: Folder) -> Report:
    """Nothing is configured: the line goes to standard error."""
    if bagua.get_rank() != 0:
        folder.wait("told")
        return _outcome(bagua.barrier)
    sys.stderr = _Watched(folder)
    return _outcome(bagua.barrier)


def a_missed_deadline(folder: Folder) -> Report:
    """The error names the call and its group."""
    if bagua.get_rank() == 0:
        report = _outcome(bagua.barrier)
        folder.leave("late")
        return report
    folder.wait("late")
    return {}


def autotune_on_one_rank(folder: Folder) -> Report:
    """The error names the call that the other rank has not made."""
    model = wrap(nn.Linear(6, 3))
    if bagua.get_rank() == 0:
        report = _outcome(lambda: pelton.autotune(model))
        folder.leave("late")
        return report
    folder.wait("late")
    return {}


def a_silent_rank(folder: Folder) -> Report:
    """Rank 1 is stopped, as by a debugger, for longer than PELTON_HEARTBEAT_TIMEOUT."""
    pids = torch.zeros(bagua.get_world_size(), dtype=torch.int64)
    bagua.allgather(torch.tensor([os.getpid()]), pids)
    if bagua.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return {}
    start = time.monotonic()
    report = _outcome(bagua.barrier)
    os.kill(int(pids[1]), signal.SIGCONT)
    return report | {"seconds": report["at"] - start}


def main() -> None:
    """Runs the scenario on this rank."""
    name, path = sys.argv[1:3]
    folder = Folder(Path(path))
    timeout_s = SHORT_TIMEOUT_S if name in ("a_missed_deadline", "autotune_on_one_rank") else TIMEOUT_S
    bagua.init_process_group(timeout=timeout_s, torch_distributed=False)
    report = globals()[name](folder)
    pelton.set_log_callback(None)
    folder.report(report)


if __name__ == "__main__":
    main()
