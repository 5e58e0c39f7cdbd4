"""Tuning while a model is trained: what `pelton.autotune` and BAGUA_AUTOTUNE ask for."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pelton import _C, _log
from pelton.errors import Aborted, DeadlineExceeded, PeerLost, Unsupported
from pelton.torch_api import env
from pelton.torch_api._state_broadcast import agree, everyone


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
        complaint: Exception | None = None
        try:
            rounds.tune(self._path(communicator))
        except Unsupported as error:
            complaint = error if self.is_demanded else None
            if not self.is_demanded and communicator.rank() == 0:
                _log.tell(logging.INFO, str(error))
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            complaint = error
        try:
            with named("autotune", inner.bagua_module_name):
                agree(communicator, complaint)
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
        if self.csv_path is not None or not env.get_is_output_autotune_log():
            return self.csv_path or ""
        with tempfile.NamedTemporaryFile(prefix="bagua_autotune_", suffix=".log", delete=False) as file:
            _log.tell(logging.INFO, f"autotune writes what it measures to {file.name}")
            return file.name


def tuning_of_environment(communicator: _C.Communicator) -> Tuning | None:
    """What BAGUA_AUTOTUNE says on all ranks: 1, the buckets; 2 or more, also the schedules between hosts. Collective.

    Args:
      communicator: of the ranks that train the model.
    """
    level = env.get_autotune_level()
    if not everyone(communicator, level >= 1):
        return None
    return Tuning(schedules=everyone(communicator, level >= 2))


@contextlib.contextmanager
def named(call: str, model: str) -> Iterator[None]:
    """Has a wait that failed say which call of the user's it was part of.

    Args:
      call: its name.
      model: the model's.
    """
    try:
        yield
    except (Aborted, DeadlineExceeded, PeerLost) as error:
        which = f"{call} of model '{model}', which all ranks must call between the same steps"
        raise type(error)(f"{which}: {error}") from None
