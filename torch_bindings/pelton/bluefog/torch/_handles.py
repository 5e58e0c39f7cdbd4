"""The numbers that BlueFog's callers hold for operations under way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pelton import _C
from pelton.bluefog._errors import WrongType
from pelton.bluefog._names import NAMES
from pelton.bluefog._timeline import Timeline, now_us
from pelton.errors import DeadlineExceeded, InvalidArgument, PeltonError

Finish = Callable[[torch.Tensor], torch.Tensor]
SUM, MEAN = 0, 10  # the runtime's numbers of them
NUMBERS = itertools.count()  # of all handles, those of windows too, so that one is never taken for another


@dataclass
class Kind:
    """An operation's names: before those that users give, and in timelines. Threads: a value. Owns: nothing."""

    prefix: str
    label: str


ALLREDUCE = Kind("allreduce", "ALLREDUCE")
BROADCAST = Kind("broadcast", "BROADCAST")
ALLGATHER = Kind("allgather", "ALLGATHER")
NEIGHBOR_ALLREDUCE = Kind("neighbor.allreduce", "NEIGHBOR_ALLREDUCE")
NEIGHBOR_ALLGATHER = Kind("neighbor.allgather", "NEIGHBOR_ALLGATHER")


@dataclass
class _Entry:
    operation: _C.Handle
    name: str | None
    finish: Finish | None
    span: tuple[Timeline, str, Kind, float] | None


class Handles:
    """Operations by number, and the names that are in flight. Threads: as Python's dicts. Owns: the operations."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._named: dict[str, _C.Handle] = {}

    def claim(self, kind: Kind, name: str | None) -> str | None:
        """Checks a name before its operation begins, and remembers it for errors.

        Args:
          kind: of the operation.
          name: as its caller gave it.

        Returns:
          What it is called here; None if it has no name.

        Raises:
          WrongType: it is no string.
          InvalidArgument: an operation of that kind and name is under way.
        """
        if name is None:
            return None
        if not isinstance(name, str):
            raise WrongType(f"{kind.label.lower()}: name={name!r}: must be a string")
        full = f"{kind.prefix}.{name}"
        running = self._named.get(full)
        if running is not None and not running.done():
            raise InvalidArgument(
                f"name: an operation '{name}' is under way already; wait for it first, or use another"
            )
        NAMES.note(name)
        return full

    def add(
        self,
        kind: Kind,
        operation: _C.Handle,
        name: str | None,
        timeline: Timeline | None,
        finish: Finish | None = None,
    ) -> int:
        """Gives an operation a number.

        Args:
          kind: of the operation.
          operation: under way.
          name: what `claim` has given.
          timeline: where it is shown; None: nowhere.
          finish: makes the result that its caller sees.
        """
        number = next(NUMBERS)
        span = None
        if timeline is not None:
            row = name or f"{kind.prefix}.noname.{number}"
            span = (timeline, row, kind, now_us())
            timeline.span(row, f"ENQUEUE_{kind.label}", span[3])
        self._entries[number] = _Entry(operation, name, finish, span)
        if name is not None:
            self._named[name] = operation
        return number

    def poll(self, number: int) -> bool:
        """Whether it is done.

        Raises:
          InvalidArgument: there is none of that number, or it was waited for.
        """
        entry = self._entries.get(number)
        if entry is None:
            raise InvalidArgument(f"handle={number!r}: is none of an operation, or was waited for already")
        return entry.operation.done()

    def wait(self, number: int) -> torch.Tensor:
        """Its result; forgets it.

        Raises:
          InvalidArgument: there is none of that number, or it was waited for.
          PeltonError: the operation's.
        """
        self.poll(number)
        entry = self._entries.pop(number)
        try:
            result = entry.operation.wait()
        except (InvalidArgument, DeadlineExceeded) as error:
            raise NAMES.explain(error) from None
        finally:
            if entry.name is not None and self._named.get(entry.name) is entry.operation:
                del self._named[entry.name]
            if entry.span is not None:
                show(*entry.span)
        return result if entry.finish is None else entry.finish(result)

    def wait_for_all(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Their results; forgets all, and waits for all, also where one fails.

        Raises:
          PeltonError: the first operation's that has failed.
        """
        results: list[torch.Tensor] = []
        failures: list[PeltonError] = []
        for number in numbers:
            try:
                results.append(self.wait(number))
            except PeltonError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return results

    def clear(self) -> None:
        """Forgets all."""
        self._entries.clear()
        self._named.clear()


def show(timeline: Timeline, row: str, kind: Kind, begin_us: float) -> None:
    """An operation that ends now, under its names of both versions of BlueFog.

    Args:
      timeline: where it is shown.
      row: what it is called there.
      kind: of the operation.
      begin_us: when it began.
    """
    timeline.span(row, f"PROC_{kind.label}", begin_us)
    timeline.span(row, f"MPI_{kind.label}", begin_us)


HANDLES = Handles()
