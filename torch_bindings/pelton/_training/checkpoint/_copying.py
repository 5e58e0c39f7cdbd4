"""A snapshot whose weights are copied while the next passes run, and which tensors those are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pelton import _C
from pelton._training.data_parallel._user_algorithm import runtime_algorithm
from pelton.errors import DeadlineExceeded

# Smaller ones are copied at once, which costs less than to look after them.
_LEAST_BYTES = 1 << 16


@dataclass(frozen=True)
class Lent:
    """A tensor that nothing should change while it is copied. Threads: a value. Owns: a reference to the tensor."""

    name: str
    tensor: torch.Tensor
    place: int  # its first byte in the buffer
    version: int


def may_be_lent(parts: dict[str, Any]) -> bool:
    """Whether Pelton hears of the passes and steps of a model before they write to its tensors.

    Args:
      parts: the objects behind its wrapped parts. An algorithm written in Python writes where it likes.
    """
    return bool(parts) and all(runtime_algorithm(inner.bagua_algorithm) is not None for inner in parts.values())


def lent(
    tensors: list[torch.Tensor], places: list[int], model: dict[str, Any], parameters: set[str]
) -> dict[int, Lent]:
    """Those of a snapshot's tensors that neither a forward nor a backward pass changes, by their number.

    Args:
      tensors: all of the snapshot's.
      places: theirs.
      model: the model's state_dict; those of its tensors are among the others.
      parameters: which of its names are those of parameters. A forward pass changes the others, the buffers.
    """
    names = {id(tensor): name for name, tensor in model.items()}
    found = {}
    for i, (tensor, place) in enumerate(zip(tensors, places)):
        name = names.get(id(tensor))
        if _can_be_lent(tensor) and (name is None or name in parameters):
            shown = f"'{name}'" if name is not None else f"a tensor of shape {list(tensor.shape)} of an optimizer"
            found[i] = Lent(shown, tensor, place, tensor._version)
    return found


def _can_be_lent(tensor: torch.Tensor) -> bool:
    # A subclass may have its bytes elsewhere, or none; those of a conjugate's view are not its values.
    is_plain = type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.is_inference()
    says_its_bytes = is_plain and not tensor.is_conj() and not tensor.is_neg()
    return says_its_bytes and tensor.nbytes >= _LEAST_BYTES and _C.TensorCopies.may_copy(tensor)


class Copying:
    """It counts once it is copied, unless something has changed a tensor meanwhile: by `Tensor._version`, or, where
    that says nothing, by some bytes of each tensor.

    Threads: the trainer's, beside that of the copies. Owns: references to the tensors, until it ends.
    """

    def __init__(
        self,
        name: str,
        tensors: list[Lent],
        memory: torch.Tensor,
        copies: _C.TensorCopies,
        timeout_s: float,
        ended: Callable[[str | None], None],
    ) -> None:
        """Begins to copy.

        Args:
          name: the snapshot's, in errors.
          tensors: what.
          memory: where to.
          copies: by whom.
          timeout_s: how long the end waits. Units: seconds.
          ended: is called at the end, with the name of a tensor that has changed; None: none has.
        """
        self._name = name
        self._tensors = tensors
        self._copies = copies
        self._timeout_s = timeout_s
        self._ended = ended
        copies.begin([(one.tensor, one.place) for one in tensors], memory)

    @property
    def is_done(self) -> bool:
        """See `_before_writes.Reader`."""
        return self._copies.is_copied

    def finish(self) -> None:
        """See `_before_writes.Reader`."""
        try:
            found = self._copies.finish(self._timeout_s)
        except DeadlineExceeded as error:
            self._copies.abandon()
            raise DeadlineExceeded(
                f"{self._name}: {error} within {self._timeout_s:.0f} s, so that the snapshot before counts on. See "
                "whether the host is out of memory"
            ) from None
        changed = None if found is None else self._tensors[found].name
        # Only here, where no write is under way: a version changes after the write that it tells of.
        by_version = (one.name for one in self._tensors if one.tensor._version != one.version)
        self._ended(next(by_version, changed))
