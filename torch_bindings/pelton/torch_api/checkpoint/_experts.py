"""Experts in a model's state_dict: which they are, and their numbers among those of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from pelton.torch_api.model_parallel.moe.experts import Experts

States = dict[int, dict[str, Any]]  # by the number of the expert among those of all ranks


class LocalExperts:
    """This rank's experts of all layers. The i-th of rank r has the number r * count + i, as in Bagua, where `count` is
    that of the layer that has most.

    Threads: a value. Owns: names.
    """

    def __init__(self, model: nn.Module, rank: int) -> None:
        """Args:
        model: the model; experts within experts belong to the outer ones.
        rank: this one.
        """
        self._prefixes: list[str] = []
        self.count = 0
        self._rank = rank
        for name, module in model.named_modules():
            prefix = f"{name}.bagua_experts." if name else "bagua_experts."
            if isinstance(module, Experts) and not self._prefix_of(prefix):
                self._prefixes.append(prefix)
                self.count = max(self.count, module.num_local_experts)

    def split(self, state: Mapping[str, Any]) -> tuple[dict[str, Any], States]:
        """What of a state_dict belongs to no expert, and the experts' parts, with their numbers in the names."""
        dense: dict[str, Any] = {}
        experts: States = {self.number(local): {} for local in range(self.count)}
        for name, value in state.items():
            prefix = self._prefix_of(name)
            if not prefix:
                dense[name] = value
                continue
            local = int(name[len(prefix) :].partition(".")[0])
            experts[self.number(local)][self.globalized(name)] = value
        return dense, experts

    def globalized(self, name: str) -> str:
        """A name with the expert's number among those of all ranks; others are as they are."""
        prefix = self._prefix_of(name)
        if not prefix:
            return name
        local, _, rest = name[len(prefix) :].partition(".")
        return f"{prefix}{self.number(int(local))}.{rest}"

    def localized(self, local: int, state: Mapping[str, Any]) -> dict[str, Any]:
        """An expert's part of a file under the names that it has here.

        Args:
          local: the expert's number on this rank.
          state: what the file holds.
        """
        number = self.number(local)
        found = {}
        for name, value in state.items():
            prefix = next((p for p in self._prefixes if name.startswith(f"{p}{number}.")), None)
            here = name if prefix is None else f"{prefix}{local}.{name[len(f'{prefix}{number}.') :]}"
            found[here] = value
        return found

    def number(self, local: int) -> int:
        """Among the experts of all ranks. Args: local: the number on this rank."""
        return self._rank * self.count + local

    def _prefix_of(self, name: str) -> str:
        return next((prefix for prefix in self._prefixes if name.startswith(prefix)), "")
