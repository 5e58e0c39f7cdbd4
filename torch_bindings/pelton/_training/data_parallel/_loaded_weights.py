"""Notices that other weights were loaded into a wrapped model: what an algorithm remembers belongs to those before."""

from __future__ import annotations

from typing import Any

import torch

from pelton._training._parameters import NamedTensors
from pelton._training.data_parallel._equality import first_difference, hashes
from pelton._training.data_parallel._together import average, begin_anew
from pelton._warn import warn
from pelton.errors import PeltonError


class LoadedWeights:
    """Since the last forward pass in training mode. Threads: the trainer's. Owns: hashes of the weights before."""

    def __init__(self) -> None:
        self._before: torch.Tensor | None = None
        self._state_came = False

    def come(self, weights: NamedTensors) -> None:
        """`load_state_dict` is about to write to the weights."""
        if self._before is None:
            self._before = hashes([tensor for _, tensor in weights])

    def state_came(self) -> None:
        """What the algorithm remembers was loaded, too: it goes with the weights, whichever came first."""
        self._state_came = True

    def are_others(self, weights: NamedTensors) -> bool:
        """Whether there are others now, and no state came with them; where they came back, as after an evaluation of
        averaged weights, nothing has changed. Asked once, at a forward pass in training mode.
        """
        before, came = self._before, self._state_came
        self._before, self._state_came = None, False
        return before is not None and not came and not torch.equal(before, hashes([tensor for _, tensor in weights]))


def settle_loaded(inner: Any) -> None:
    """Lets an algorithm that remembers weights begin anew from those that were loaded. Collective, on the ranks that
    have loaded some.

    Ranks that have loaded different ones come to their mean first, with a warning.

    Args:
      inner: the object behind the wrapped model.

    Raises:
      PeltonError: what the communication failed with; or not all ranks have loaded weights.
    """
    weights = inner._selected.trainable
    if not inner._loaded.are_others(weights) or inner._rounds is None or not inner._rounds.remembers_weights:
        return
    communicator = inner.process_group.get_global_communicator()
    try:
        different = first_difference(communicator, weights)
    except PeltonError as error:
        raise type(error)(
            f"{inner.bagua_module_name}: load_state_dict has given this rank other weights, and the ranks compare what "
            "they have loaded before the next step, because the algorithm goes by weights. Load them on all ranks "
            f"between the same two steps, also where only one reads the file: {error}"
        ) from error
    if different is not None:
        warn(
            f"{inner.bagua_module_name}: the ranks have loaded different weights ('{different.name}' and "
            f"{different.count - 1} more), and no algorithm's state with them: they have come to their mean. "
            "load_algorithm_state_dict() on every rank goes on from each rank's own"
        )
        average(communicator, [tensor for _, tensor in weights])
    begin_anew(inner)
