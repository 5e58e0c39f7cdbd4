"""Tuning of more than the buckets: algorithms that the user calls equally right, and schedules between hosts."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pelton import _C, _log
from pelton._training._state_broadcast import agree_on, agreeing
from pelton._training.algorithms._options import defaults_of
from pelton._training.algorithms.base import Algorithm, AlgorithmImpl, RegisteredAlgorithm
from pelton._training.data_parallel._algorithm_state import AlgorithmState, adopt, from_dict
from pelton._training.data_parallel._attachment import show_algorithm
from pelton._training.data_parallel._checked import checked_algorithm
from pelton._training.data_parallel._equality import check_equal
from pelton._training.data_parallel._schedules import measured_rows
from pelton._training.data_parallel._together import carried, install_agreed
from pelton._training.data_parallel._tuning import Tuning, add_row, agreed_path, named
from pelton._training.data_parallel._user_algorithm import runtime_algorithm
from pelton.errors import FailedPrecondition, Unsupported

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
        rows = "; ".join(self.schedules.splitlines())
        return _label(self.algorithm) + (f" with the schedules '{rows}'" if rows else "")

    @property
    def is_hierarchical(self) -> bool:
        """As its option says."""
        registered = runtime_algorithm(self.algorithm)
        return registered is not None and _options_of(registered).get("hierarchical") == "true"


def _options_of(registered: RegisteredAlgorithm) -> dict[str, str]:
    """Those that it names, and the defaults of all others."""
    return {**defaults_of(registered.name), **registered.options}


def _label(algorithm: AlgorithmImpl) -> str:
    registered = runtime_algorithm(algorithm)
    assert registered is not None, "what is written in Python was refused"
    options = ", ".join(f"{name}={value}" for name, value in sorted(_options_of(registered).items()))
    return f"{registered.name}({options})"


class Contest:
    """Setups that have turns while a model is trained; rank 0 decides, and all ranks change after the same step.

    Threads: the trainer's. Owns: what a setup remembers while another one has its turn.
    """

    def __init__(self, communicator: _C.Communicator, model: str, setups: Sequence[Setup], csv_path: str = "") -> None:
        """Args:
        communicator: of the ranks that train the model.
        model: its name.
        setups: the first one is in force.
        csv_path: where rank 0 adds what it measured; "": nowhere.
        """
        self._communicator, self._model, self._setups, self._csv_path = communicator, model, setups, csv_path
        self._steps = 0
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

    @property
    def left(self) -> int:
        """Steps of the turn under way."""
        return self._left

    def anew(self, algorithm: AlgorithmImpl) -> Contest:
        """The same contest from its first turn on, with nothing remembered.

        Args:
          algorithm: in force, with the schedules that were when this one began.
        """
        first = Setup(algorithm, self._setups[0].schedules)
        others = [setup for setup in self._setups if setup != first]
        return Contest(self._communicator, self._model, [first, *others], self._csv_path)

    @property
    def first(self) -> Setup:
        """What is in force when it begins."""
        return self._setups[0]

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
        self._steps += 1
        self._left -= 1
        if self._left > 0:
            return
        condition = (
            f"which ends a turn after {self._steps} steps on this rank, and must do so after as many on every rank. A "
            "rank that skips an optimizer.step() by itself is behind; have all ranks skip it, or none"
        )
        with named("autotune", self._model, condition):
            setup, self._left = self._next_turn(inner)
            if setup != self._current:
                self._change_to(inner, setup)
        self._ended_at = time.perf_counter()

    def _next_turn(self, inner: Any) -> tuple[int, int]:
        words = torch.zeros(2, dtype=torch.int64, device="cpu")
        if self._communicator.rank() == 0:
            words[0], words[1] = self._tuner.next(self._steps_s, [0.0] * len(self._setups))
            self._tell()
            self._write_rows(inner)
        self._steps_s = []
        self._communicator.broadcast(words, 0)
        return int(words[0]), int(words[1])

    def _change_to(self, inner: Any, setup: int) -> None:
        names, left = [name for name, _ in inner._selected.trainable], inner._state()
        self._remembered[self._current] = names, left
        if inner._own.is_same_as(inner.bagua_algorithm):
            inner._own.keep(left, inner._selected.trainable)
        inner._live_rounds().detach(inner._session.timeout_s)
        inner._rounds = None
        self._current = setup
        _put_in_force(inner, self._setups[setup])
        of_names, state = self._remembered.pop(setup, (names, None))
        inner._install(inner._selected, state if of_names == names else None)
        if state is not None and of_names != names:  # the model was registered again meanwhile
            inner._reinstall(carried(state, inner._live_rounds().state()))

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

    def _write_rows(self, inner: Any) -> None:
        """Of each turn, as those of a bucket size. Bagua's score is the speed: GiB of tensors a second."""
        verdicts = self._tuner.verdicts
        turns = [(verdict.challenger, verdict.challenger_s) for verdict in verdicts]
        turns += [(verdict.current, verdict.current_s) for verdict in verdicts[:1]]
        gib = sum(tensor.nbytes for _, tensor in inner._selected.trainable) / 2**30
        exponent = int(inner.statistics()["bucket_size_bytes"]).bit_length() - 1
        for number, step_s in turns:
            if not self._csv_path or step_s <= 0:
                return
            row = [exponent, self._setups[number].is_hierarchical, f"{gib / step_s:.6f}", self._steps]
            try:
                add_row(self._csv_path, [*row, self._setups[number].label])
            except OSError as error:
                line = f"autotune cannot write to {self._csv_path} ({error.strerror}) and goes on without that file"
                _log.tell(logging.WARNING, f"model '{self._model}': {line}. Look at the disk and the folder")
                self._csv_path = ""


def begin_tuning(
    inner: Any, csv: str | os.PathLike[str] | None, alternatives: Sequence[Algorithm | str], tunes_schedules: bool
) -> None:
    """See `pelton.autotune`. Collective, between steps.

    Args:
      inner: the object behind the wrapped model.
      csv: a file for what rank 0 measures.
      alternatives: beside the algorithm in force.
      tunes_schedules: whether a table measured now is one, too.

    Raises:
      FailedPrecondition: also, a contest is under way, in which what is in force may be on trial only.
    """
    if inner._contest is not None:  # on all ranks, which change together: none is left waiting
        raise FailedPrecondition(
            f"model '{inner.bagua_module_name}': autotune tries alternatives now, {inner._contest.left} steps of this "
            "turn are left; call it again when model.bagua_ddp.is_tuning is False"
        )
    rounds, communicator = inner._live_rounds(), inner.process_group.get_global_communicator()
    with named("autotune", inner.bagua_module_name):
        csv_path = agreed_path(communicator, csv)
    if not alternatives and not tunes_schedules:
        tuning = Tuning(csv_path, is_demanded=True)
        tuning.begin(inner)
        inner._contest, inner._tuning = None, tuning
        return
    with named("autotune", inner.bagua_module_name):
        contest = _begin_contest(inner, alternatives, tunes_schedules, csv_path or "")
    rounds.end_tuning()
    inner._contest, inner._tuning = contest, Tuning(csv_path)
    if contest is None:
        inner._tuning.begin(inner)


def _begin_contest(
    inner: Any, alternatives: Sequence[Algorithm | str], tunes_schedules: bool, csv_path: str = ""
) -> Contest | None:
    """Begins to try what is as good as what is in force. Collective, between steps.

    Args:
      inner: the object behind the wrapped model.
      alternatives: beside the algorithm in force.
      tunes_schedules: whether a table measured now is one, too.
      csv_path: where rank 0 adds what it measured; "": nowhere.

    Returns:
      None where there is nothing to choose from.

    Raises:
      Unsupported: an algorithm cannot be tried, or the model is on a GPU; the text says which.
      InvalidArgument: an alternative is none, or the ranks' differ.
      FailedPrecondition: a round is open, on this rank or another.
    """
    communicator = inner.process_group.get_global_communicator()
    with agreeing(communicator):
        setups = [Setup(inner.bagua_algorithm, inner._schedules), *_setups_of(inner, alternatives)]
        for setup in setups:
            _check(inner, setup.algorithm)
        inner._state()
    agree_on(communicator, "alternatives", [tunes_schedules, *(setup.label for setup in setups)])
    rows = measured_rows(inner) if tunes_schedules else ""
    if rows and rows != inner._schedules:
        setups += [Setup(setup.algorithm, rows) for setup in setups]
    return Contest(communicator, inner.bagua_module_name, setups, csv_path) if len(setups) > 1 else None


def _put_in_force(inner: Any, setup: Setup) -> None:
    inner.bagua_algorithm, inner._schedules = setup.algorithm, setup.schedules
    show_algorithm(inner.module, inner)


def put_own_in_force(inner: Any) -> None:
    """Puts the algorithm that the user has wrapped a model with in force for the next registration. A contest under way
    begins anew from it.

    Args:
      inner: the object behind the wrapped model.
    """
    own, in_force = inner._own.algorithm, inner.bagua_algorithm
    if inner._contest is not None:
        inner._contest = inner._contest.anew(own)
        _put_in_force(inner, inner._contest.first)
        return
    if own is in_force:
        return
    _put_in_force(inner, Setup(own, inner._schedules))
    if inner.process_group.get_global_communicator().rank() == 0:
        line = (
            f"model '{inner.bagua_module_name}': autotune: {_label(own)} is in force again, whose state was loaded, in "
            f"the place of {_label(in_force)}; call pelton.autotune() to try both"
        )
        _log.tell(logging.INFO, line)


def load_own_state(inner: Any, state_dict: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
    """See `BaguaDistributedDataParallel.load_algorithm_state_dict`.

    Args:
      inner: the object behind the wrapped model.
      state_dict: see there.

    Raises:
      PeltonError: see there.
    """
    rounds = inner._live_rounds()
    communicator = inner.process_group.get_global_communicator()
    with agreeing(communicator):
        state = from_dict(state_dict, inner.process_group.ranks, communicator.rank())
        adopt(inner._own.algorithm, state)
    agree_on(communicator, "state", state.common())
    if state.whole:
        check_equal(communicator, inner._selected.trainable, inner.bagua_module_name)
    rounds.detach(inner._session.timeout_s)
    inner._rounds = None
    put_own_in_force(inner)
    install_agreed(inner, state)
    inner._loaded.state_came()


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
