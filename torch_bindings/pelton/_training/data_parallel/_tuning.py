"""Tuning while a model is trained: what `pelton.autotune` and BAGUA_AUTOTUNE ask for."""

from __future__ import annotations

import contextlib
import csv
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pelton import _C, _log
from pelton._training import env
from pelton._training._state_broadcast import agreeing, everyone
from pelton.errors import Aborted, DeadlineExceeded, InvalidArgument, PeerLost, Unsupported

_COLUMNS = ("bucket_size_2p", "is_hierarchical_reduce", "score", "train_iter", "setup")  # Bagua's, and one more
_BETWEEN_STEPS = "which all ranks must call between the same steps"


@dataclass(frozen=True)
class Tuning:
    """A wish to tune, which holds for every registration of the model. Threads: a value. Owns: nothing.

    Attributes:
      csv_path: where rank 0 adds what it measured; None: where BAGUA_IS_OUTPUT_AUTOTUNE_LOG says, if it does.
      is_demanded: whether it is an error if the model cannot be tuned.
      schedules: whether those between hosts are tuned, too, before the buckets.
    """

    csv_path: str | None = None
    is_demanded: bool = False
    schedules: bool = False

    def begin(self, inner: Any) -> None:
        """Tunes a model from its next round on. Collective.

        Args:
          inner: the object behind the wrapped model.

        Raises:
          Unsupported: it was demanded, and the model cannot be tuned; the text says why.
          FailedPrecondition: a round is open, on this rank or another.
        """
        communicator, rounds = inner.process_group.get_global_communicator(), inner._live_rounds()
        try:
            with named("autotune", inner.bagua_module_name), agreeing(communicator):
                try:
                    rounds.tune(self._path(communicator))
                except Unsupported as error:
                    if self.is_demanded:
                        raise
                    if communicator.rank() == 0:
                        _log.tell(logging.INFO, str(error))
        except BaseException:
            rounds.end_tuning()
            raise

    def begin_schedules(self, inner: Any) -> None:
        """Tunes the schedules between hosts, and the buckets after them, where that can be done. Collective.

        Args:
          inner: the object behind the wrapped model.
        """
        try:
            inner.autotune(self.csv_path, schedules=True)
        except Unsupported as error:
            if inner.process_group.get_global_communicator().rank() == 0:
                _log.tell(logging.INFO, str(error))

    def _path(self, communicator: _C.Communicator) -> str:
        if communicator.rank() != 0:
            return ""
        return self.csv_path or _temporary() or ""


def tuning_of_environment(communicator: _C.Communicator) -> Tuning | None:
    """What BAGUA_AUTOTUNE says on all ranks: 1, the buckets; 2 or more, also the schedules between hosts. Collective.

    Args:
      communicator: of the ranks that train the model.
    """
    level = env.get_autotune_level()
    if not everyone(communicator, level >= 1):
        return None
    return Tuning(schedules=everyone(communicator, level >= 2))


def agreed_path(communicator: _C.Communicator, given: str | os.PathLike[str] | None) -> str | None:
    """The file that `csv` names, which a later change of the current folder does not move, or else the one that the
    environment asks for. Collective.

    Returns:
      On rank 0 its path; None: there is none, or this is another rank.

    Raises:
      InvalidArgument: rank 0 cannot write to it; on all ranks.
    """
    with agreeing(communicator):
        if communicator.rank() != 0:
            return None
        try:
            return _temporary() if given is None else _writable(given)
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) else error
            where = str(given or tempfile.gettempdir())
            raise InvalidArgument(
                f"csv: rank 0 cannot write to {where!r}: {reason}; pass a file in a folder that is there on the host "
                "of rank 0, and that the job may write to"
            ) from None


def _temporary() -> str | None:
    """A new file, if BAGUA_IS_OUTPUT_AUTOTUNE_LOG says so."""
    if not env.get_is_output_autotune_log():
        return None
    with tempfile.NamedTemporaryFile(prefix="bagua_autotune_", suffix=".log", delete=False) as file:
        _log.tell(logging.INFO, f"autotune writes what it measures to {file.name}")
        return file.name


def _writable(given: str | os.PathLike[str]) -> str:
    """Leaves no file behind that was not there: perhaps nothing will be measured."""
    path = os.fspath(given)
    is_there = os.path.exists(path)
    with open(path, "a"):
        path = os.path.abspath(path)
    if not is_there:
        os.remove(path)
    return path


def add_row(path: str, row: Sequence[Any]) -> None:
    """Adds what was measured to a file of `csv`, and its first line to a new one.

    Args:
      path: the file.
      row: by _COLUMNS.

    Raises:
      OSError: it cannot be written.
    """
    with open(path, "a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if file.tell() == 0:
            writer.writerow(_COLUMNS)
        writer.writerow(row)


@contextlib.contextmanager
def named(call: str, model: str, condition: str = _BETWEEN_STEPS) -> Iterator[None]:
    """Has a wait that failed say which call of the user's it was part of.

    Args:
      call: its name.
      model: the model's.
      condition: what the ranks must do for it not to fail.
    """
    try:
        yield
    except (Aborted, DeadlineExceeded, PeerLost) as error:
        raise type(error)(f"{call} of model '{model}', {condition}: {error}") from None
