"""Saving and loading of a job's whole state, in Bagua's files and some beside them that Bagua does not look at."""

from __future__ import annotations

import enum
import itertools
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch
from torch import nn

from pelton._training._state_broadcast import agree_on
from pelton._training.checkpoint import _disk, _entries, _folders
from pelton._training.checkpoint._entries import Entries
from pelton._training.checkpoint._experts import LocalExperts, States
from pelton._training.checkpoint._moving import Names, moved, names_in
from pelton._training.checkpoint._ranks import Ranks, paused, wrapped_parts
from pelton._training.data_parallel._together import begin_anew
from pelton.errors import InvalidArgument, Unsupported

__all__ = ["load_checkpoint", "save_checkpoint"]

_FORMAT = 1
_SHARED = "it must be one folder on a file system that all ranks share"
_LOG = logging.getLogger("pelton")

AnyOptimizer = Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer], None]
AnyScheduler = Any  # torch's schedulers have no public base class in all versions; or a list of them


def save_checkpoint(
    iteration: int,
    checkpoints_path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: AnyOptimizer = None,
    lr_scheduler: AnyScheduler = None,
) -> None:
    """Saves the whole state of a job, for `load_checkpoint`. Collective over the model's group.

    The checkpoint takes its place at once, when all of it is on the disk; whatever happens until then, the last
    complete one is found. `checkpoints_path` lies on a file system that all ranks share. Averaging beside training
    (`async`) stands still meanwhile.

    Args:
      iteration: the number of the checkpoint; one of the same number is replaced.
      checkpoints_path: the folder of checkpoints; made if it is missing.
      model: with its buffers, its experts, and what the algorithms of its wrapped parts remember, on all ranks.
      optimizer: what steps it; one stands for a list of it.
      lr_scheduler: what changes the learning rate; one stands for a list of it.

    Raises:
      InvalidArgument: an argument is wrong or differs between ranks; a state holds more than tensors and plain values;
        or another rank failed, whose number the text begins with.
      ResourceExhausted: the disk is full. FailedPrecondition: another operation of the system's failed.
      DeadlineExceeded, PeerLost: not all ranks took part.
    """
    wrapped = wrapped_parts(model)
    ranks = Ranks(wrapped)
    path = ranks.together(lambda: _path(checkpoints_path))
    ranks.together(lambda: _check_iteration(iteration))
    with paused(wrapped):
        mine = ranks.together(lambda: _collect(model, _listed(optimizer), _listed(lr_scheduler), wrapped, ranks))
        if ranks.communicator is not None:
            described = [iteration, len(mine.experts), sorted(mine.algorithms), mine.has_optimizer]
            agree_on(ranks.communicator, "iteration, experts, wrapped models or optimizers", described)
        mine = _without_rank_0s(mine, ranks)
        saving = _folders.Saving(path, iteration)
        try:
            ranks.together(saving.begin if ranks.rank == 0 else _nothing)
            ranks.together(lambda: _write(saving.folder, iteration, mine, ranks))
            ranks.together((lambda: _commit(saving, mine, ranks)) if ranks.rank == 0 else _nothing)
        except Exception:
            if ranks.rank == 0:
                saving.give_up()
            raise
    _LOG.info("checkpoint %d is saved in %s", iteration, path)


def load_checkpoint(
    checkpoints_path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: AnyOptimizer = None,
    lr_scheduler: AnyScheduler = None,
    strict: bool = True,
    *,
    algorithm_state: bool = True,
) -> int:
    """Loads the last complete checkpoint. Collective over the model's group.

    To go on bit by bit wrap the model first, and load after. Bagua's checkpoints are loaded, too; the algorithm begins
    anew from their weights then.

    Args:
      checkpoints_path: the folder of checkpoints.
      model: takes weights and buffers; what of it is wrapped takes the state of its algorithm.
      optimizer: takes its state; one stands for a list of it, as when it was saved.
      lr_scheduler: takes its state; the same.
      strict: names of the model and of the checkpoint must be the same.
      algorithm_state: False: each rank takes rank 0's weights and optimizers, and the algorithm begins anew. For
        another algorithm than the checkpoint was saved with. On another number of ranks the algorithm goes on, see
        `load_algorithm_state_dict`; where the ranks' weights, statistics or optimizers differed, each rank takes the
        mean of what is a floating point tensor and rank 0's of the rest.

    Returns:
      The checkpoint's number; 0, with a warning, if there is none, and for a release: a checkpoint that somebody has
      renamed `release`, and written that into the tracker. A release may lack optimizer and scheduler.

    Raises:
      InvalidArgument: the checkpoint does not fit, lacks something or cannot be read; the text says what.
      DeadlineExceeded, PeerLost: not all ranks took part.
    """
    wrapped = wrapped_parts(model)
    ranks = Ranks(wrapped)
    path = ranks.together(lambda: _path(checkpoints_path))
    latest = ranks.by_first(lambda: _latest(path))
    if latest is None:
        _LOG.warning("%s: there is no %s; nothing is loaded", path, _folders.TRACKER)
        return 0
    iteration, name, is_release, saved_by = latest
    parts = _parts(saved_by, ranks, wrapped, algorithm_state)
    source = _Source(os.path.join(path, name), is_release, parts, saved_by)
    with paused(wrapped):
        targets = _Targets(model, _listed(optimizer), _listed(lr_scheduler))
        found = ranks.together(lambda: _read(source, targets, ranks))
        ranks.together(lambda: _apply(found, targets, strict))
        for part, inner in wrapped.items():
            _continue_algorithm(inner, found.algorithms.get(part))
    _LOG.info("checkpoint %d is loaded from %s", iteration, path)
    return int(iteration)


def _nothing() -> None:
    """What ranks do while rank 0 works."""


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _as_given(states: list[Any]) -> Any:
    """Bagua's form for one, a list for several."""
    return states[0] if len(states) == 1 else states


def _path(given: Any) -> str:
    if not isinstance(given, (str, os.PathLike)):
        raise InvalidArgument(f"checkpoints_path={given!r}: must be the path of a folder")
    return os.fspath(given)


def _check_iteration(iteration: int) -> None:
    if not isinstance(iteration, int) or isinstance(iteration, bool) or iteration < 0:
        raise InvalidArgument(f"iteration={iteration!r}: must be a whole number, 0 or more")


@dataclass
class _Contents:
    """What one rank's part of a checkpoint holds. Threads: the trainer's. Owns: references to tensors."""

    entries: Entries
    metadata: Any  # of the model's state_dict
    experts: States
    optimizers: list[dict[str, Any]]
    has_optimizer: bool
    algorithms: dict[str, Any]
    names: Names  # of the optimizers' parameters, where there are experts
    own: Entries
    absent: list[Any]


def _collect(
    model: nn.Module, optimizers: list[Any], schedulers: list[Any], wrapped: dict[str, Any], ranks: Ranks
) -> _Contents:
    local = LocalExperts(model, ranks.rank, ranks.size)
    full = model.state_dict()
    dense, experts = local.split(full)
    states = [_entries.saved(o.state_dict(), f"optimizer {type(o).__name__}") for o in optimizers]
    entries = _entries.model_entries(_entries.saved(dense, "model"))
    if not local.count:
        entries.update(_entries.optimizer_entries(states))
    saved = [_entries.saved(s.state_dict(), f"lr_scheduler {type(s).__name__}") for s in schedulers]
    entries.update(_entries.scheduler_entries(saved))
    return _Contents(
        entries,
        getattr(full, "_metadata", None),
        {number: _entries.saved(state, f"expert {number}") for number, state in experts.items()},
        states if local.count else [],
        bool(optimizers),
        {name: _entries.saved(_state_of(inner), f"algorithm of '{name}'") for name, inner in wrapped.items()},
        names_in(optimizers, model, local) if local.count else [],
        {},
        [],
    )


def _state_of(inner: Any) -> dict[str, Any]:
    """What the algorithm remembers; of one that is written in Python what its class tells."""
    try:
        state: dict[str, Any] = inner.algorithm_state_dict()
    except Unsupported:
        return {"python": True, "implementation": inner.bagua_algorithm.state_dict()}
    return state


def _without_rank_0s(mine: _Contents, ranks: Ranks) -> _Contents:
    """Leaves to each rank but the first what is not the same there. Collective."""
    if ranks.size == 1:
        return mine
    rank_0s = ranks.by_first(lambda: _entries.digests(mine.entries))
    if ranks.rank != 0:
        mine.own, mine.absent = _entries.own_of(mine.entries, rank_0s)
    return mine


def _write(folder: str, iteration: int, mine: _Contents, ranks: Ranks) -> None:
    """This rank's files."""
    if not os.path.isdir(folder):
        raise InvalidArgument(f"checkpoints_path: there is no {folder}, which rank 0 has made: {_SHARED}")
    for number, state in mine.experts.items():
        _disk.write_tensors(os.path.join(folder, _folders.expert_file(number)), state)
    if mine.experts:
        state = {"optimizer": _as_given(mine.optimizers) if mine.has_optimizer else None}
        _disk.write_tensors(os.path.join(folder, _folders.optimizer_file(ranks.rank)), state)
    if ranks.rank == 0:
        _disk.write_tensors(os.path.join(folder, _folders.MODEL), _model_file(iteration, mine))
    kept = {
        "format": _FORMAT,
        "rank": ranks.rank,
        "own": mine.own,
        "absent": mine.absent,
        "algorithms": mine.algorithms,
        "names": mine.names,
    }
    _disk.write_tensors(os.path.join(folder, _folders.rank_file(ranks.rank)), kept)


def _model_file(iteration: int, mine: _Contents) -> dict[str, Any]:
    found: dict[str, Any] = {"iteration": iteration, "model": _entries.model_state(mine.entries, mine.metadata)}
    if mine.has_optimizer and not mine.experts:
        found["optimizer"] = _as_given(_entries.optimizer_states(mine.entries))
    schedulers = _entries.scheduler_states(mine.entries)
    if schedulers:
        found["lr_scheduler"] = _as_given(schedulers)
    return found


def _commit(saving: _folders.Saving, mine: _Contents, ranks: Ranks) -> None:
    """On rank 0, when all ranks have written theirs."""
    wanted = [_folders.MODEL, *map(_folders.rank_file, range(ranks.size))]
    wanted += map(_folders.expert_file, range(len(mine.experts) * ranks.size))
    wanted += map(_folders.optimizer_file, range(ranks.size if mine.experts else 0))
    missing = [name for name in wanted if not os.path.isfile(os.path.join(saving.folder, name))]
    if missing:
        raise InvalidArgument(
            f"checkpoints_path: rank 0 does not find {', '.join(missing[:3])}, which other ranks wrote: {_SHARED}"
        )
    text = json.dumps({"format": _FORMAT, "world_size": ranks.size}).encode()
    _disk.write(os.path.join(saving.folder, _folders.MANIFEST), lambda file: file.write(text))
    saving.commit()


def _latest(path: str) -> tuple[int, str, bool, int] | None:
    """Number, folder's name, whether it is a release, and the number of ranks that saved it; None: nothing is there."""
    found = _folders.find_latest(path)
    if found is None:
        return None
    return found.iteration, os.path.basename(found.folder), found.is_release, _saved_by(found.folder)


def _saved_by(folder: str) -> int:
    """A number of ranks; 0: Bagua wrote the checkpoint, and does not say."""
    name = os.path.join(folder, _folders.MANIFEST)
    try:
        with open(name) as file:
            manifest = json.load(file)
        if manifest["format"] == _FORMAT:
            return int(manifest["world_size"])
    except FileNotFoundError:
        return 0
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidArgument(f"{name}: is damaged: {error!r}") from None
    raise InvalidArgument(f"{name}: its format is {manifest['format']!r}; this version reads {_FORMAT}")


class _Parts(enum.Enum):
    """Which ranks' parts of a checkpoint a rank goes on from."""

    FIRST = "rank 0's alone"
    OWN = "its own"
    ALL = "all ranks', of which there was another number"


def _parts(saved_by: int, ranks: Ranks, wrapped: dict[str, Any], is_wanted: bool) -> _Parts:
    if saved_by == 0 or not is_wanted:
        return _Parts.FIRST
    if saved_by == ranks.size:
        return _Parts.OWN
    return _Parts.ALL if wrapped else _Parts.FIRST


@dataclass(frozen=True)
class _Source:
    """Where to load from. Threads: a value. Owns: its fields."""

    folder: str
    is_release: bool
    parts: _Parts
    saved_by: int  # ranks; 0: Bagua's do not say

    def file(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def read(self, name: str) -> Any:
        try:
            return _disk.read_tensors(self.file(name))
        except FileNotFoundError:
            raise InvalidArgument(f"{self.file(name)} is missing: the checkpoint is not whole") from None


@dataclass(frozen=True)
class _Targets:
    """What takes the states. Threads: the trainer's. Owns: nothing."""

    model: nn.Module
    optimizers: list[Any]
    schedulers: list[Any]


@dataclass
class _Found:
    """What a checkpoint has for this rank. Threads: the trainer's. Owns: its tensors."""

    model: dict[str, Any]
    optimizers: list[Any]
    schedulers: list[Any]
    algorithms: dict[str, Any]


def _read(source: _Source, targets: _Targets, ranks: Ranks) -> _Found:
    local = LocalExperts(targets.model, ranks.rank, ranks.size, source.saved_by)
    shared = source.read(_folders.MODEL)
    optimizers = _states(source, "optimizer", _optimizers_of(source, shared, local, ranks, targets), targets.optimizers)
    schedulers = _states(source, "lr_scheduler", shared.get("lr_scheduler"), targets.schedulers)
    entries = _entries.model_entries(shared["model"])
    entries.update(_entries.scheduler_entries(schedulers))
    if not local.count:
        entries.update(_entries.optimizer_entries(optimizers))
    algorithms: dict[str, Any] = {}
    if source.parts is _Parts.OWN:
        kept = source.read(_folders.rank_file(ranks.rank))
        algorithms = kept["algorithms"]
        entries = _entries.of_rank(entries, kept["absent"], _wanted(kept["own"], optimizers, schedulers))
    elif source.parts is _Parts.ALL:
        everyones = [source.read(_folders.rank_file(rank)) for rank in range(source.saved_by)]
        algorithms = {name: [kept["algorithms"][name] for kept in everyones] for name in everyones[0]["algorithms"]}
        own = [_wanted(kept["own"], optimizers, schedulers) for kept in everyones]
        entries = _entries.means([_entries.of_rank(entries, k["absent"], mine) for k, mine in zip(everyones, own)])
    model = _entries.model_state(entries, getattr(shared["model"], "_metadata", None))
    for number in local.numbers():
        model.update(local.localized(number, source.read(_folders.expert_file(number))))
    if not local.count:
        optimizers = _entries.optimizer_states(entries)
    return _Found(model, optimizers, _entries.scheduler_states(entries), algorithms)


def _wanted(own: Entries, optimizers: list[Any], schedulers: list[Any]) -> Entries:
    """Without what is not to be loaded."""
    counts = {"model": 1, "optimizer": len(optimizers), "lr_scheduler": len(schedulers)}
    return {key: value for key, value in own.items() if counts[key[0]]}


def _optimizers_of(
    source: _Source, shared: dict[str, Any], local: LocalExperts, ranks: Ranks, targets: _Targets
) -> Any:
    if not local.count:
        return shared.get("optimizer")
    _check_number_of_experts(source, local.count * ranks.size)
    if not targets.optimizers:
        return None
    if source.saved_by and source.parts is not _Parts.OWN:
        return _moved_optimizers(source, targets, local)
    others = source.file(_folders.optimizer_file(ranks.size))
    mine = source.file(_folders.optimizer_file(ranks.rank))
    if os.path.exists(others) or (not source.is_release and not os.path.exists(mine)):
        raise InvalidArgument(
            f"{source.folder} has optimizers of another number of ranks than {ranks.size}, and Bagua does not say "
            "which states are those of which experts: load it without optimizer, or on as many ranks as saved it"
        )
    return _disk.read_tensors(mine)["optimizer"] if os.path.exists(mine) else None


def _check_number_of_experts(source: _Source, wanted: int) -> None:
    def has(number: int) -> bool:
        return os.path.exists(source.file(_folders.expert_file(number)))

    if has(wanted - 1) and not has(wanted):
        return
    found = next(number for number in itertools.count() if not has(number))
    raise InvalidArgument(
        f"{source.folder} holds {found} experts, this model has {wanted} on all ranks together: make it with as many"
    )


def _moved_optimizers(source: _Source, targets: _Targets, local: LocalExperts) -> list[dict[str, Any]] | None:
    """Where experts may have moved between ranks, or the rest is to be rank 0's."""

    def read(rank: int) -> tuple[Names, list[dict[str, Any]]]:
        saved = source.read(_folders.optimizer_file(rank))["optimizer"]
        return source.read(_folders.rank_file(rank))["names"], _listed(saved)

    if source.read(_folders.optimizer_file(0))["optimizer"] is None:
        return None
    names = names_in(targets.optimizers, targets.model, local)
    return moved(targets.optimizers, names, source.saved_by, read, takes_means=source.parts is _Parts.ALL)


def _states(source: _Source, what: str, saved: Any, targets: list[Any]) -> list[Any]:
    """The saved states of optimizers or schedulers that are to be loaded: as many as are given."""
    if not targets:
        return []
    if saved is None:
        if source.is_release:
            _LOG.info("%s has no %s: it stays as it is", source.folder, what)
            return []
        raise InvalidArgument(f"{what}: {source.folder} has none; it was saved without one")
    states = saved if isinstance(saved, list) else [saved]
    if len(states) != len(targets):
        raise InvalidArgument(f"{what}: {source.folder} has {len(states)}, {len(targets)} are given")
    return states


def _apply(found: _Found, targets: _Targets, strict: bool) -> None:
    targets.model.load_state_dict(found.model, strict=strict)
    for optimizer, state in zip(targets.optimizers, found.optimizers):
        optimizer.load_state_dict(state)
    for scheduler, state in zip(targets.schedulers, found.schedulers):
        scheduler.load_state_dict(state)


def _continue_algorithm(inner: Any, state: dict[str, Any] | list[dict[str, Any]] | None) -> None:
    """Args: state: this rank's, or all ranks', of which there was another number."""
    first = state[0] if isinstance(state, list) else state
    if state is None or first is None:
        begin_anew(inner)
        inner._loaded.state_came()
    elif not first.get("python"):
        inner.load_algorithm_state_dict(state)
    elif isinstance(state, list) and not _entries.are_same([each["implementation"] for each in state]):
        raise InvalidArgument(
            f"{type(inner.bagua_algorithm).__name__} is written in Python, the checkpoint has what it remembered on "
            f"each of {len(state)} ranks, and nothing says what another number of ranks makes of that: pass "
            "algorithm_state=False to begin it anew from rank 0's weights and optimizers"
        )
    else:
        inner.bagua_algorithm.load_state_dict(first["implementation"])
