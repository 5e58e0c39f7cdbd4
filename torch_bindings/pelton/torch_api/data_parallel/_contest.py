"""Tuning of more than the buckets: algorithms that the user calls equally right, and schedules between hosts."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pelton import _C, _log
from pelton.errors import Unsupported
from pelton.torch_api._state_broadcast import agree, agree_on
from pelton.torch_api.algorithms.base import Algorithm, AlgorithmImpl
from pelton.torch_api.data_parallel._algorithm_state import AlgorithmState
from pelton.torch_api.data_parallel._checked import checked_algorithm
from pelton.torch_api.data_parallel._schedules import measured_rows
from pelton.torch_api.data_parallel._together import carried
from pelton.torch_api.data_parallel._user_algorithm import runtime_algorithm

# Of a turn; the first two follow a new registration, whose buckets find their order after the first.
_TURN_STEPS, _SKIPPED_STEPS = 6, 2
# Of two setups 4 pairs of turns; each further setup has a turn before.
_MOST_STEPS = 58


@dataclass(frozen=True)
class Setup:
    """One way to communicate a model's gradients. Threads: a value. Owns: nothing.

    Attributes:
      algorithm: at work on the model's group.
      schedules: rows for collectives between hosts that go before those of the job.
    """

    algorithm: AlgorithmImpl
    schedules: str = ""

    @property
    def label(self) -> str:
        """For the log, and for comparison between ranks."""
        registered = runtime_algorithm(self.algorithm)
        assert registered is not None, "what is written in Python was refused"
        options = ", ".join(f"{name}={value}" for name, value in sorted(registered.options.items()))
        rows = "; ".join(self.schedules.splitlines())
        return f"{registered.name}({options})" + (f" with the schedules '{rows}'" if rows else "")


class Contest:
    """Setups that have turns while a model is trained; rank 0 decides, and all ranks change after the same step.

    Threads: the trainer's. Owns: what a setup remembers while another one has its turn.
    """

    def __init__(self, communicator: _C.Communicator, model: str, setups: Sequence[Setup]) -> None:
        """Args:
        communicator: of the ranks that train the model.
        model: its name.
        setups: the first one is in force.
        """
        self._communicator, self._model, self._setups = communicator, model, setups
        most = _MOST_STEPS + _TURN_STEPS * max(0, len(setups) - 2)
        self._tuner = _C.PlanTuner(len(setups), 0, _TURN_STEPS, _SKIPPED_STEPS, most)
        self._current, self._left = self._tuner.turn
        self._steps_s: list[float] = []
        self._remembered: dict[int, tuple[list[str], AlgorithmState | None]] = {}  # with the tensors' names
        self._ended_at = time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether the setup in force stays."""
        return self._left == 0

    def step_ended(self, inner: Any) -> None:
        """A step of the model's is complete. Collective where it ends a turn.

        Args:
          inner: the object behind the wrapped model.

        Raises:
          PeltonError: what the communication failed with.
        """
        now = time.perf_counter()
        self._steps_s.append(now - self._ended_at)
        self._ended_at = now
        self._left -= 1
        if self._left > 0:
            return
        setup, self._left = self._next_turn()
        if setup != self._current:
            self._change_to(inner, setup)
        self._ended_at = time.perf_counter()

    def _next_turn(self) -> tuple[int, int]:
        words = torch.zeros(2, dtype=torch.int64, device="cpu")
        if self._communicator.rank() == 0:
            words[0], words[1] = self._tuner.next(self._steps_s, [0.0] * len(self._setups))
            self._tell()
        self._steps_s = []
        self._communicator.broadcast(words, 0)
        return int(words[0]), int(words[1])

    def _change_to(self, inner: Any, setup: int) -> None:
        names = [name for name, _ in inner._selected.trainable]
        self._remembered[self._current] = names, inner._state()
        inner._live_rounds().detach(inner._session.timeout_s)
        inner._rounds = None
        self._current = setup
        inner.bagua_algorithm, inner._schedules = self._setups[setup].algorithm, self._setups[setup].schedules
        of_names, state = self._remembered.pop(setup, (names, None))
        inner._install(inner._selected, state if of_names == names else None)
        if state is not None and of_names != names:  # the model was registered again meanwhile
            fresh, inner._rounds = inner._live_rounds(), None
            state = carried(state, fresh.state())
            fresh.detach(inner._session.timeout_s)
            inner._install(inner._selected, state)

    def _tell(self) -> None:
        for verdict in self._tuner.verdicts:
            challenger, current = self._setups[verdict.challenger].label, self._setups[verdict.current].label
            line = (
                f"model '{self._model}': autotune: {verdict.challenger_s * 1e3:.3f} ms a step with {challenger}, "
                f"{verdict.current_s * 1e3:.3f} ms with {current}"
            )
            if verdict.is_final:
                line += (
                    f"; faster by {verdict.gain_s * 1e3:.3f} ms, noise {verdict.noise_s * 1e3:.3f} ms: "
                    f"{'taken' if verdict.is_taken else 'not taken'}"
                )
            else:
                line += ", in a turn each"
            _log.tell(logging.INFO, line)
        setup, steps = self._tuner.turn
        if steps == 0:
            _log.tell(logging.INFO, f"model '{self._model}': autotune goes on with {self._setups[setup].label}")


def begin_contest(inner: Any, alternatives: Sequence[Algorithm | str], tunes_schedules: bool) -> Contest | None:
    """Begins to try what is as good as what is in force. Collective, between steps.

    Args:
      inner: the object behind the wrapped model.
      alternatives: beside the algorithm in force.
      tunes_schedules: whether a table measured now is one, too.

    Returns:
      None where there is nothing to choose from.

    Raises:
      Unsupported: an algorithm cannot be tried, or the model is on a GPU; the text says which.
      InvalidArgument: an alternative is none, or the ranks' differ.
      FailedPrecondition: a round is open, on this rank or another.
    """
    communicator = inner.process_group.get_global_communicator()
    setups: list[Setup] = []
    complaint: Exception | None = None
    try:
        setups = [Setup(inner.bagua_algorithm, inner._schedules), *_setups_of(inner, alternatives)]
        for setup in setups:
            _check(inner, setup.algorithm)
        inner._state()
    except Exception as error:  # whatever it is, the other ranks must not wait for this one
        complaint = error
    agree(communicator, complaint)
    agree_on(communicator, "alternatives", [tunes_schedules, *(setup.label for setup in setups)])
    rows = measured_rows(inner) if tunes_schedules else ""
    if rows and rows != inner._schedules:
        setups += [Setup(setup.algorithm, rows) for setup in setups]
    return Contest(communicator, inner.bagua_module_name, setups) if len(setups) > 1 else None


def _setups_of(inner: Any, alternatives: Sequence[Algorithm | str]) -> list[Setup]:
    if isinstance(alternatives, (str, Algorithm)):
        alternatives = [alternatives]
    algorithms = [checked_algorithm(alternative, inner.bagua_optimizers) for alternative in alternatives]
    return [Setup(algorithm.reify(inner.process_group), inner._schedules) for algorithm in algorithms]


def _check(inner: Any, algorithm: AlgorithmImpl) -> None:
    kind, registered = type(algorithm), runtime_algorithm(algorithm)
    why = ""
    if registered is None:
        why = "it is written in Python"
    elif _C.schedule(registered.name, registered.options) != ("gradients", "when_ready"):
        why = "its rounds are not of gradients in backward passes"
    elif kind.need_reset is not AlgorithmImpl.need_reset:
        why = "it has several phases"
    elif registered.stepped_by is not None or registered.exchange is not None:
        why = "an optimizer of its own belongs to it"
    elif any(tensor.device.type != "cpu" for _, tensor in inner._selected.trainable):
        why = "the model is on a GPU, whose steps cannot be timed on the host"
    if why:
        raise Unsupported(f"autotune: {kind.__name__} cannot be tried beside another algorithm: {why}; leave it out")
