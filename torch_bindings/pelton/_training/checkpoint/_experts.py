"""Experts in a model's state_dict: which they are, and their numbers among those of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from pelton.errors import InvalidArgument

States = dict[int, dict[str, Any]]  # by the number of the expert among those of all ranks


class LocalExperts:
    """This rank's experts of all layers, and their numbers in files. The i-th of the rank r that saved it has the
    number r * count + i, as in Bagua, where `count` is that of the layer that has most there.

    Threads: a value. Owns: names.
    """

    def __init__(self, model: nn.Module, rank: int, size: int, saved_by: int = 0) -> None:
        """Args:
          model: the model; experts within experts belong to the outer ones.
          rank: this one.
          size: how many there are.
          saved_by: how many ranks save or have saved the files; 0: as many.

        Raises:
          InvalidArgument: so many ranks cannot have had equally many of a layer's experts.
        """
        self._counts: dict[str, int] = {}  # by the prefix of the layer's names
        self._rank, self._size, self._saved_by = rank, size, saved_by or size
        for name, module in model.named_modules():
            prefix = f"{name}.bagua_experts." if name else "bagua_experts."
            if getattr(type(module), "holds_experts", False) and not self._prefix_of(prefix):
                self._counts[prefix] = module.num_local_experts
                self._check(prefix)
        self.count = max(self._counts.values(), default=0)

    def _check(self, prefix: str) -> None:
        total = self._counts[prefix] * self._size
        if total % self._saved_by != 0:
            raise InvalidArgument(
                f"{prefix.removesuffix('.bagua_experts.')}: the layer has {total} experts on all ranks, which the "
                f"{self._saved_by} ranks that saved cannot have shared equally"
            )

    def split(self, state: Mapping[str, Any]) -> tuple[dict[str, Any], States]:
        """What of a state_dict belongs to no expert, and the experts' parts, with their numbers in the names."""
        dense: dict[str, Any] = {}
        experts: States = {number: {} for number in self.numbers()}
        for name, value in state.items():
            prefix = self._prefix_of(name)
            if not prefix:
                dense[name] = value
                continue
            local = int(name[len(prefix) :].partition(".")[0])
            experts[self._number(prefix, local)][self.globalized(name)] = value
        return dense, experts

    def numbers(self) -> list[int]:
        """Of the files that hold this rank's experts."""
        return sorted({self._number(prefix, local) for prefix, count in self._counts.items() for local in range(count)})

    def globalized(self, name: str) -> str:
        """A name with the expert's number in files; others are as they are."""
        prefix = self._prefix_of(name)
        if not prefix:
            return name
        local, _, rest = name[len(prefix) :].partition(".")
        return f"{prefix}{self._number(prefix, int(local))}.{rest}"

    def localized(self, number: int, state: Mapping[str, Any]) -> dict[str, Any]:
        """What of a file this rank's experts need, under the names that it has here; of other layers the file may hold
        another rank's.

        Args:
          number: the file's.
          state: what it holds.
        """
        found = {}
        for name, value in state.items():
            prefix = self._prefix_of(name)
            if not prefix:
                found[name] = value
                continue
            rest = name[len(prefix) :].partition(".")[2]
            for local in range(self._counts[prefix]):
                if self._number(prefix, local) == number:
                    found[f"{prefix}{local}.{rest}"] = value
        return found

    def _number(self, prefix: str, local: int) -> int:
        """In files, of a layer's expert on this rank."""
        among_all = self._rank * self._counts[prefix] + local
        count = self._counts[prefix] * self._size // self._saved_by
        most = self.count * self._size // self._saved_by
        return among_all // count * most + among_all % count

    def _prefix_of(self, name: str) -> str:
        return next((prefix for prefix in self._counts if name.startswith(prefix)), "")
