"""Compares what the ranks hold, by hashes: every so many steps where PELTON_CHECK says so, and for `pelton.check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pelton import _C
from pelton._training import env
from pelton._training._parameters import NamedTensors
from pelton._training._state_broadcast import of_all_ranks
from pelton.errors import FailedPrecondition, InvalidArgument

_ROW_WORDS = 1 << 15
_ROWS_ON_GPU = 1 << 9


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
    everyones = of_all_ranks(communicator, hashes([tensor for _, tensor in named]), torch.int64)
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
    """A number for each tensor's bits and their order, the same on every device. Shape: `[len(tensors)]`, int64, on the
    CPU.
    """
    with torch.no_grad():
        odd = {device: _odd_numbers(device) for device in {tensor.device for tensor in tensors}}
        found = [_hash(tensor.detach(), odd[tensor.device]) for tensor in tensors]
        return torch.tensor(found, dtype=torch.int64, device="cpu")


def _hash(tensor: torch.Tensor, odd: torch.Tensor) -> int:
    """Of words of eight bytes, which is faster than of narrower ones; what is left over fills a last one in part."""
    flat = tensor.contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    if flat.storage_offset() * flat.element_size() % 8 != 0:
        flat = flat.clone()
    in_words = flat.numel() - flat.numel() % (8 // flat.element_size())
    rest = flat[in_words:].view(torch.uint8)
    last = torch.nn.functional.pad(rest, (0, 8 - rest.numel())).view(torch.int64)
    words = torch.cat([_fold(flat[:in_words].view(torch.int64), odd), last])
    while words.numel() > 1:
        words = _fold(words, odd)
    return int(words)


def _fold(words: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
    """One word for each row of them, and one for the words that fill no row. On the CPU one row at a time, which stays
    in a core's cache.
    """
    in_rows = words.numel() - words.numel() % _ROW_WORDS
    rows = torch.split(words[:in_rows].view(-1, _ROW_WORDS), 1 if words.is_cpu else _ROWS_ON_GPU)
    return torch.cat([*(_sum(block, odd) for block in rows), _sum(words[in_rows:], odd[: words.numel() - in_rows])])


def _sum(words: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
    """Modulo 2**64, each word times the odd number of its place. High bits go into low ones before that, because the
    highest bit, a float64's sign, would cancel out where it differs in two words.
    """
    return (words >> 29).bitwise_xor_(words).mul_(odd).sum(-1).reshape(-1)


def _odd_numbers(device: torch.device) -> torch.Tensor:
    """For each place of a row, without a pattern. Source: SplitMix64, with its constants as signed numbers."""
    numbers = torch.arange(1, _ROW_WORDS + 1, dtype=torch.int64, device=device) * -0x61C8864680B583EB
    numbers = (numbers ^ (numbers >> 30)) * -0x40A7B892E31B1A47
    numbers = (numbers ^ (numbers >> 27)) * -0x6B2FB644ECCEEE15
    return numbers | 1


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
