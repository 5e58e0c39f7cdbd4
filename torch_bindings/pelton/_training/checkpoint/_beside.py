"""Beside a checkpoint that a framework writes from rank 0's state: what the other ranks and the algorithms have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from pelton._training.checkpoint import _disk, _entries, _one_file
from pelton._training.checkpoint._experts import LocalExperts
from pelton._training.checkpoint._ranks import Ranks
from pelton._training.checkpoint.checkpointing import _continue_algorithm
from pelton.errors import InvalidArgument, Unsupported

FILE = "pelton_ranks.pt"


@dataclass(frozen=True)
class Trained:
    """What a job trains. Threads: the trainer's. Owns: nothing."""

    models: Sequence[tuple[nn.Module, Any]]  # each with the object behind it; only those that are wrapped
    optimizers: Sequence[Any]
    schedulers: Sequence[Any]
    scaler: Any = None

    def entries(self, number: int) -> _entries.Entries:
        """Of a model; and, of the first one, all that there is one of."""
        entries = _entries.model_entries(self.models[number][0].state_dict())
        if number > 0:
            return entries
        entries.update(_entries.optimizer_entries([optimizer.state_dict() for optimizer in self.optimizers]))
        entries.update(_entries.scheduler_entries([scheduler.state_dict() for scheduler in self.schedulers]))
        if self.scaler is not None:
            entries[("scaler",)] = self.scaler.state_dict()
        return entries

    def take(self, number: int, entries: _entries.Entries) -> None:
        """The reverse of `entries`."""
        model, _ = self.models[number]
        model.load_state_dict(_entries.model_state(entries, getattr(model.state_dict(), "_metadata", None)))
        for optimizer, state in zip(self.optimizers, _entries.optimizer_states(entries)):
            optimizer.load_state_dict(state)
        for scheduler, state in zip(self.schedulers, _entries.scheduler_states(entries)):
            scheduler.load_state_dict(state)
        if self.scaler is not None and ("scaler",) in entries:
            self.scaler.load_state_dict(entries[("scaler",)])


def save(folder: str, trained: Trained) -> None:
    """Writes, on rank 0, what of each other rank's differs from rank 0's, and what the algorithms remember. Collective.

    Args:
      folder: the checkpoint's.
      trained: has one wrapped model at least.

    Raises:
      FailedPrecondition: an algorithm has a round under way; or the file cannot be written.
      DeadlineExceeded, PeerLost: not all ranks took part.
    """
    parts = [_one_file.gather(trained.entries(number), inner) for number, (_, inner) in enumerate(trained.models)]
    ranks = _ranks_of(trained)
    ranks.together(lambda: _disk.write_tensors(os.path.join(folder, FILE), parts) if ranks.rank == 0 else None)


def load(folder: str, trained: Trained) -> None:
    """Goes on from what `save` wrote, once all ranks have loaded rank 0's state. Collective.

    Without such a file on any rank, as the framework alone does not write it, the ranks stay at rank 0's state.

    Args:
      folder: the checkpoint's.
      trained: has one wrapped model at least.

    Raises:
      InvalidArgument: the file has another number of models, or cannot be read; or is of another algorithm; or only
        some ranks have one.
      Unsupported: another number of ranks has saved experts.
    """
    ranks = _ranks_of(trained)
    everything = ranks.together(lambda: _read(folder, trained, ranks))
    if not ranks.all_say(bool(everything)) and not ranks.all_say(not everything):
        here, elsewhere = ("has", "do not have") if everything else ("does not have", "have")
        raise InvalidArgument(
            f"{os.path.join(folder, FILE)}: rank {ranks.rank} {here} this file, and other ranks {elsewhere} theirs; "
            "copy the whole folder from the host of rank 0 to every host, or load it from a disk that all of them share"
        )
    for number, parts in enumerate(everything):
        entries, algorithm = _one_file.entries_of(trained.entries(number), parts, ranks.rank, ranks.size)
        trained.take(number, entries)
        _continue_algorithm(trained.models[number][1], algorithm)


def _ranks_of(trained: Trained) -> Ranks:
    return Ranks({str(number): inner for number, (_, inner) in enumerate(trained.models)})


def _read(folder: str, trained: Trained, ranks: Ranks) -> list[list[_one_file.Part]]:
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        return []
    everything: list[list[_one_file.Part]] = _disk.read_tensors(path)
    if len(everything) != len(trained.models):
        raise InvalidArgument(
            f"{path}: {len(everything)} wrapped models were saved, and {len(trained.models)} are to be loaded; prepare "
            "as many"
        )
    for (model, _), parts in zip(trained.models, everything):
        if len(parts) != ranks.size and LocalExperts(model, ranks.rank, ranks.size).count:
            raise Unsupported(
                f"{path}: {len(parts)} ranks have saved their experts, and these are {ranks.size}; "
                "pelton.torch_api.checkpoint moves experts between ranks"
            )
    return everything
