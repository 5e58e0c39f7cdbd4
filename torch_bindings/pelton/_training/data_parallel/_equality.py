"""Compares what the ranks hold, by hashes: every so many steps where PELTON_CHECK says so, and for `pelton.check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pelton import _C
from pelton._training import env
from pelton._training._parameters import NamedTensors
from pelton.errors import FailedPrecondition, InvalidArgument

_WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """The first tensor that differs. Threads: a value. Owns: nothing."""

    name: str
    ranks: list[int]  # of the group, that hold something else than its rank 0
    count: int  # of tensors that differ


def first_difference(communicator: _C.Communicator, named: NamedTensors) -> Difference | None:
    """Compares tensors with the other ranks', which hold tensors of the same names. Collective.

    Returns:
      The same on all ranks: the first tensor of which not all ranks hold the same bits; None: there is none.
    """
    own = hashes([tensor for _, tensor in named])
    everyones = torch.zeros(communicator.nranks(), len(own), dtype=torch.int64, device="cpu")
    communicator.allgather(own, everyones)
    differs = everyones.ne(everyones[0])
    columns = differs.any(0).nonzero().reshape(-1).tolist()
    if not columns:
        return None
    ranks = differs[:, columns[0]].nonzero().reshape(-1).tolist()
    return Difference(named[columns[0]][0], [int(rank) for rank in ranks], len(columns))


def check_equal(communicator: _C.Communicator, named: NamedTensors, model: str) -> None:
    """Before the state of another number of ranks is loaded, which belongs to weights that all ranks hold. Collective.

    Raises:
      InvalidArgument: they hold different ones; on all ranks.
    """
    found = first_difference(communicator, named)
    if found is not None:
        raise InvalidArgument(
            f"{model}: '{found.name}' on {_list(found.ranks)} differs from rank 0's, and so do {found.count - 1} other "
            "tensors, but a state of another number of ranks goes on from the same weights on all of them. Load their "
            "mean, or one rank's, on every rank first"
        )


def hashes(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A number for each tensor's bits: the sum of its words. Shape: `[len(tensors)]`, int64, on the CPU."""
    with torch.no_grad():
        return torch.tensor([_hash(tensor.detach()) for tensor in tensors], dtype=torch.int64, device="cpu")


def _hash(tensor: torch.Tensor) -> int:
    """Adds up words of eight bytes, which is several times as fast as narrower ones, and what is left over."""
    flat = tensor.contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    if flat.storage_offset() * flat.element_size() % 8 != 0:
        flat = flat.clone()
    in_words = flat.numel() - flat.numel() % (8 // flat.element_size())
    rest = flat[in_words:].view(_WIDTHS[flat.element_size()])
    words = flat[:in_words].view(torch.int64)
    return int(words.sum()) ^ int(rest.sum(dtype=torch.int64))


class EqualityCheck:
    """Raises, on all ranks, where weights differ that the algorithm keeps equal.

    Threads: the trainer's. Owns: a count.
    """

    def __init__(self, model: str, algorithm: str, communicator: _C.Communicator, interval: int) -> None:
        """Args:
        model: its name in errors.
        algorithm: its name in errors.
        communicator: of the ranks that take part.
        interval: between comparisons. Units: steps.
        """
        self._model = model
        self._algorithm = algorithm
        self._communicator = communicator
        self._interval = interval
        self._steps = 0
        self._is_due = False

    def step_ended(self, named: NamedTensors, are_equal: bool, unknown: Sequence[str]) -> None:
        """A step of the model's has ended. Collective, every so many steps; where the weights are not equal by then,
        at the next step after which they are.

        Args:
          named: the parameters.
          are_equal: whether the algorithm says that all ranks hold the same now.
          unknown: kinds of optimizers that have stepped the model and were not given, for the guess.

        Raises:
          FailedPrecondition: they do not; the text names the first that differs, the step and a likely reason.
        """
        self._steps += 1
        self._is_due = self._is_due or self._steps % self._interval == 0
        if not self._is_due or not are_equal:
            return
        self._is_due = False
        found = first_difference(self._communicator, named)
        if found is not None:
            raise FailedPrecondition(
                f"PELTON_CHECK: after step {self._steps} '{found.name}' of {self._model} differs from rank 0's on "
                f"{_list(found.ranks)}, and so do {found.count - 1} other tensors, although {self._algorithm} keeps "
                f"them equal. {self._guess(unknown)}"
            )

    def _guess(self, unknown: Sequence[str]) -> str:
        if unknown:
            return f"A likely reason: {' and '.join(unknown)} steps the model and was not given to with_bagua"
        return (
            "Likely reasons: gradients that were changed or assigned after backward() on some ranks "
            "(torch.autograd.grad, torch.func.grad), weights that were written to, options of the optimizer that "
            "differ (its learning rate), or a random number on which a step depends"
        )


def check_of(inner: Any) -> EqualityCheck | None:
    """What PELTON_CHECK asks for, of the model behind which this object is; None: nothing."""
    interval = env.check_interval()
    if interval == 0:
        return None
    algorithm = type(inner.bagua_algorithm).__name__.removesuffix("Impl")
    communicator = inner.process_group.get_global_communicator()
    return EqualityCheck(inner.bagua_module_name, algorithm, communicator, interval)


def _list(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
