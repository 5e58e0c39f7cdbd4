"""Notices that other weights were loaded into a wrapped model: what an algorithm remembers belongs to those before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pelton._training._parameters import NamedTensors
from pelton._training._state_broadcast import everyone
from pelton._training.data_parallel._equality import first_difference, hashes
from pelton._training.data_parallel._together import average, begin_anew
from pelton._warn import warn
from pelton.errors import PeltonError


@dataclass(frozen=True)
class Loading:
    """What this rank has loaded since the last forward pass in training mode. Threads: a value. Owns: nothing."""

    concerns_all: bool  # weights without a state, which did not come back by a later load
    changed: bool  # whether there are other weights now


@dataclass
class _Load:
    """One load whose weights have not gone again. Threads: a value. Owns: hashes of weights."""

    before: torch.Tensor
    loaded: torch.Tensor
    is_used: bool  # the model was called, or saved, with these weights


class LoadedWeights:
    """Since the last forward pass in training mode. Threads: the trainer's. Owns: hashes of the weights before."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._first: torch.Tensor | None = None  # before the first load
        self._last: torch.Tensor | None = None  # before the last one
        self._is_used = False  # since the last one
        self._loads: list[_Load] = []
        self._state_came = False

    def come(self, weights: NamedTensors) -> None:
        """`load_state_dict` is about to write to the weights."""
        now = hashes([tensor for _, tensor in weights])
        self._end_load(now)
        self._last, self._is_used = now, False
        if self._first is None:
            self._first = now

    def use(self) -> None:
        """The model is called, or saved."""
        self._is_used = True

    def state_came(self) -> None:
        """What the algorithm remembers was loaded, too: it goes with the weights, whichever came first."""
        self._state_came = True

    def take(self, weights: NamedTensors) -> Loading:
        """What was loaded until now; asked once, at a forward pass in training mode.

        One rank alone may load weights, use them and load those of before, as to evaluate averages: such a pair changes
        nothing. Any other load concerns all ranks, also one of the weights that this rank has already, because the
        others may have loaded the same in place of others.
        """
        first, came = self._first, self._state_came
        if first is None or came:
            loading = Loading(concerns_all=False, changed=False)
        else:
            now = hashes([tensor for _, tensor in weights])
            self._end_load(now)
            changed = not torch.equal(first, now)
            loading = Loading(changed or bool(self._loads), changed)
        self._forget()
        return loading

    def _end_load(self, now: torch.Tensor) -> None:
        if self._last is None:
            return
        other = self._loads[-1] if self._loads else None
        if other is not None and torch.equal(other.before, now) and (other.is_used or self._has_changed(other)):
            self._loads.pop()
        else:
            self._loads.append(_Load(self._last, now, self._is_used))

    @staticmethod
    def _has_changed(load: _Load) -> bool:
        """Where it has, what restores the weights of before is no repetition, whatever they were used for."""
        return not torch.equal(load.before, load.loaded)


def settle_loaded(inner: Any, loading: Loading) -> None:
    """Lets an algorithm that remembers weights begin anew from those that were loaded. Collective, on the ranks that
    have loaded some; where these change nothing on any rank, nothing is done.

    Ranks that have loaded different ones come to their mean first, with a warning.

    Args:
      inner: the object behind the wrapped model.
      loading: what this rank has loaded.

    Raises:
      PeltonError: what the communication failed with; or not all ranks have loaded weights.
    """
    weights = inner._selected.trainable
    if not loading.concerns_all:
        return
    communicator = inner.process_group.get_global_communicator()
    try:
        if everyone(communicator, not loading.changed):
            return
        different = first_difference(communicator, weights)
    except PeltonError as error:
        raise type(error)(
            f"{inner.bagua_module_name}: load_state_dict was called on this rank, and the ranks compare what they have "
            "loaded before the next step, because the algorithm goes by weights. Load them on all ranks between the "
            f"same two steps, also where only one reads the file: {error}"
        ) from error
    if different is not None:
        warn(
            f"{inner.bagua_module_name}: the ranks have loaded different weights ('{different.name}' and "
            f"{different.count - 1} more), and no algorithm's state with them: they have come to their mean. "
            "load_algorithm_state_dict() on every rank goes on from each rank's own"
        )
        average(communicator, [tensor for _, tensor in weights])
    begin_anew(inner)
