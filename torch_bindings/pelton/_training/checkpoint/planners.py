"""Planners for torch.distributed.checkpoint that keep what differs between ranks.

It keeps one rank's of what the ranks name alike. These planners name experts by their numbers among those of all ranks
and, with `per_rank`, everything by its rank. State dictionaries keep their keys; the names are the checkpoint's alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan

__all__ = ["LoadPlanner", "SavePlanner"]

_EXPERT = re.compile(r"((?:^|\.)bagua_experts\.)(\d+)(?=\.)")


class _Names:
    """Names in the checkpoint of what this rank has. The i-th expert of rank r has the number r * count + i, where
    `count` is that of its layer.

    Threads: a value. Owns: nothing.
    """

    def __init__(self, process_group: dist.ProcessGroup | None, per_rank: bool) -> None:
        is_joined = dist.is_available() and dist.is_initialized()
        self._rank = dist.get_rank(process_group) if is_joined else 0
        size = dist.get_world_size(process_group) if is_joined else 1
        self._prefix = f"rank_{self._rank}_of_{size}" if per_rank else ""

    def by_local(self, names: Iterable[str]) -> dict[str, str]:
        """By the names that a state_dict has, flattened."""
        listed = list(names)
        counts: dict[str, int] = {}  # by what comes before the number
        for match in filter(None, map(_EXPERT.search, listed)):
            layer = match.string[: match.start(2)]
            counts[layer] = max(counts.get(layer, 0), int(match[2]) + 1)
        return {name: ".".join(filter(None, (self._prefix, self._among_all(name, counts)))) for name in listed}

    def _among_all(self, name: str, counts: dict[str, int]) -> str:
        match = _EXPERT.search(name)
        return self._globalized(name, self._rank * counts[name[: match.start(2)]]) if match else name

    def path(self, path: tuple[Any, ...], local: str, name: str) -> tuple[Any, ...]:
        """The place in nested dictionaries that goes with a name, for those who read a checkpoint without a model."""
        local_match, match = _EXPERT.search(local), _EXPERT.search(name)
        steps = list(path)
        if local_match and match:
            numbers = int(match[2]) - int(local_match[2])
            steps = [self._globalized(step, numbers) if isinstance(step, str) else step for step in steps]
        return (self._prefix, *steps) if self._prefix else tuple(steps)

    @staticmethod
    def _globalized(name: str, first: int) -> str:
        """Of experts within experts the outer ones are numbered."""
        return _EXPERT.sub(lambda match: f"{match[1]}{first + int(match[2])}", name, count=1)


class SavePlanner(DefaultSavePlanner):
    """For `torch.distributed.checkpoint.save` and `async_save`: `save(state, checkpoint_id=folder,
    planner=SavePlanner())`. What belongs to experts is told by names, those of an optimizer's state, too, as
    `get_state_dict` makes them.

    Threads: as torch's. Owns: references to what is saved.
    """

    def __init__(
        self, process_group: dist.ProcessGroup | None = None, *, per_rank: bool = False, **options: Any
    ) -> None:
        """Args:
        process_group: that of `save`, and the ranks that share their experts; None for all.
        per_rank: every rank's tensors are kept, for algorithms that let them differ; as many ranks load them.
        options: of torch's DefaultSavePlanner.
        """
        super().__init__(**options)
        self._names = _Names(process_group, per_rank)

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        """See torch's."""
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        names = self._names.by_local(self.state_dict)
        self.state_dict = {names[local]: value for local, value in self.state_dict.items()}
        paths = {local: path for local, path in self.mappings.items() if local in names}
        self.mappings = {names[local]: self._names.path(path, local, names[local]) for local, path in paths.items()}


class LoadPlanner(DefaultLoadPlanner):
    """For `torch.distributed.checkpoint.load` of what `SavePlanner` has planned.

    Experts move to another number of ranks where there are as many in all. What differs by rank (`per_rank`) is loaded
    by as many ranks as saved it; fewer or more get torch's error, which names what is missing.

    Threads: as torch's. Owns: references to what is loaded.
    """

    def __init__(
        self, process_group: dist.ProcessGroup | None = None, *, per_rank: bool = False, **options: Any
    ) -> None:
        """Args:
        process_group: that of `load`, and the ranks that share their experts; None for all.
        per_rank: as the checkpoint was saved.
        options: of torch's DefaultLoadPlanner.
        """
        super().__init__(**options)
        self._names = _Names(process_group, per_rank)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """See torch's."""
        super().set_up_planner(state_dict, metadata, is_coordinator)
        names = self._names.by_local(self.state_dict)
        self.state_dict = {names[local]: value for local, value in self.state_dict.items()}
        self.mappings = {names[local]: path for local, path in self.mappings.items() if local in names}

    def create_local_plan(self) -> LoadPlan:
        """The one of torch would take other ranks' experts for names of before torch 2.4."""
        assert self.metadata is not None, "set_up_planner comes first"
        return create_default_local_load_plan(self.state_dict, self.metadata, not self.allow_partial_load)
