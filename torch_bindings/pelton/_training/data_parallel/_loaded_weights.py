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


class LoadedWeights:
    """Since the last forward pass in training mode. Threads: the trainer's. Owns: hashes of the weights before."""

    def __init__(self) -> None:
        self._before: torch.Tensor | None = None
        self._before_last: torch.Tensor | None = None  # of the loads
        self._same_count = 0  # of loads in a row, up to the last one that has ended, that wrote what was there
        self._state_came = False

    def come(self, weights: NamedTensors) -> None:
        """`load_state_dict` is about to write to the weights."""
        now = hashes([tensor for _, tensor in weights])
        self._end_load(now)
        self._before_last = now
        if self._before is None:
            self._before = now

    def state_came(self) -> None:
        """What the algorithm remembers was loaded, too: it goes with the weights, whichever came first."""
        self._state_came = True

    def take(self, weights: NamedTensors) -> Loading:
        """What was loaded until now; asked once, at a forward pass in training mode.

        Weights that are the same as before concern all ranks if one load wrote what was there, because another rank may
        have loaded the same in place of others. They came back, as after an evaluation of averaged weights, which one
        rank may do alone, if the last load changed them, or if two loads in a row wrote what was there, because
        averages may still be equal to the weights.
        """
        before, came = self._before, self._state_came
        if before is None or came:
            loading = Loading(concerns_all=False, changed=False)
        else:
            now = hashes([tensor for _, tensor in weights])
            self._end_load(now)
            changed = not torch.equal(before, now)
            loading = Loading(changed or self._same_count == 1, changed)
        self._before, self._before_last, self._same_count, self._state_came = None, None, 0, False
        return loading

    def _end_load(self, now: torch.Tensor) -> None:
        if self._before_last is not None:
            self._same_count = self._same_count + 1 if torch.equal(self._before_last, now) else 0


def settle_loaded(inner: Any) -> None:
    """Lets an algorithm that remembers weights begin anew from those that were loaded. Collective, on the ranks that
    have loaded some; where these change nothing on any rank, nothing is done.

    Ranks that have loaded different ones come to their mean first, with a warning.

    Args:
      inner: the object behind the wrapped model.

    Raises:
      PeltonError: what the communication failed with; or not all ranks have loaded weights.
    """
    weights = inner._selected.trainable
    loading = inner._loaded.take(weights)
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
