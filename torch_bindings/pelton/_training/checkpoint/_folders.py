"""A folder of checkpoints: Bagua's names, and how one checkpoint takes its place among them.

A checkpoint is written to a folder beside its target (`.iter_0000010.saving`) and renamed when it is whole. One that
has the same number is put aside (`.iter_0000010.replaced`) for that moment. The tracker names the last one. Rank 0
alone does what is in this file, but for writing its own files to the folder that is being filled.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

from pelton._training.checkpoint import _disk
from pelton.errors import InvalidArgument

TRACKER = "latest_checkpointed_iteration.txt"
MODEL = "mp_rank_00_model_states.pt"
MANIFEST = "pelton_checkpoint.json"
_RELEASE = "release"
_ASIDE = re.compile(r"\.(iter_\d{7,}|release)\.(saving|replaced)")


def expert_file(number: int) -> str:
    """Of an expert. Args: number: the expert's among those of all ranks."""
    return f"expert_{number}_mp_rank_00_model_states.pt"


def optimizer_file(rank: int) -> str:
    """Of a rank's optimizers, where the model has experts."""
    return f"expert_parallel_rank_{rank}_mp_rank_00_optim_states.pt"


def rank_file(rank: int) -> str:
    """Of what only Pelton keeps of a rank; Bagua looks at no such name."""
    return f"pelton_rank_{rank:05d}_states.pt"


@dataclass(frozen=True)
class Found:
    """The checkpoint that the tracker names. Threads: a value. Owns: its fields."""

    iteration: int  # 0 for a release
    folder: str
    is_release: bool


def find_latest(path: str) -> Found | None:
    """The checkpoint to be loaded; None: there is no tracker.

    Raises:
      InvalidArgument: the tracker says something else, or names a checkpoint that is not there.
    """
    tracker = os.path.join(path, TRACKER)
    try:
        with open(tracker, encoding="utf-8", errors="replace") as file:
            text = file.read().strip()
    except FileNotFoundError:
        return None
    is_release = text == _RELEASE
    if not is_release and not text.isdecimal():
        raise InvalidArgument(f"{tracker} says {text[:40]!r}: must be the number of a checkpoint, or 'release'")
    iteration = 0 if is_release else int(text)
    target = os.path.join(path, _RELEASE if is_release else _name(iteration))
    for folder in (target, _aside(target, "replaced")):  # the second: a save ended between two renamings
        if os.path.isdir(folder):
            return Found(iteration, folder, is_release)
    raise InvalidArgument(f"{tracker} names {text}, but there is no {target}")


class Saving:
    """One checkpoint on its way into place. Threads: rank 0's trainer. Owns: the folder that is being filled."""

    def __init__(self, path: str, iteration: int) -> None:
        """Args:
        path: the folder of checkpoints.
        iteration: the number of this one.
        """
        self._path = path
        self._iteration = iteration
        self._target = os.path.join(path, _name(iteration))
        self.folder = _aside(self._target, "saving")

    def begin(self) -> None:
        """Makes the empty folder, after clearing up what saves that were ended have left.

        Raises:
          OSError: it cannot be made.
        """
        _disk.make_folders(self._path)
        _clear_up(self._path)
        os.mkdir(self.folder)
        _disk.sync_folder(self._path)

    def commit(self) -> None:
        """Puts the checkpoint in its place and has the tracker name it. Until then the last one counts.

        Raises:
          OSError: it could not; the last one still counts.
        """
        tracker = os.path.join(self._path, TRACKER)
        text = str(self._iteration).encode()
        _disk.write(f"{tracker}.saving", lambda file: file.write(text))  # first, because it may find the disk full
        _disk.sync_folder(self.folder)
        try:
            self._take_place()
            _disk.rename(f"{tracker}.saving", tracker)
        except OSError:
            self._step_back()
            raise
        with contextlib.suppress(OSError):  # the next save clears up
            _let_go(self._replaced, self._target)

    @property
    def _replaced(self) -> str:
        return _aside(self._target, "replaced")

    def _take_place(self) -> None:
        if os.path.isdir(self._target):
            _disk.rename(self._target, self._replaced)
        _disk.rename(self.folder, self._target)

    def _step_back(self) -> None:
        """Puts one of the same number back where it was, whichever renaming failed."""
        if not os.path.isdir(self._replaced):
            return
        with contextlib.suppress(OSError):
            if os.path.isdir(self._target):
                os.rename(self._target, self.folder)
            os.rename(self._replaced, self._target)

    def give_up(self) -> None:
        """Removes what was written, as far as that goes; the next save removes the rest."""
        with contextlib.suppress(OSError):
            _disk.remove_folder(self.folder)


def _clear_up(path: str) -> None:
    for name in os.listdir(path):
        match = _ASIDE.fullmatch(name)
        if match is None:
            continue
        target = os.path.join(path, match[1])
        folder = os.path.join(path, name)
        if match[2] == "replaced" and not os.path.isdir(target):
            _disk.rename(folder, target)
        elif match[2] == "replaced":
            _let_go(folder, target)
        else:
            _disk.remove_folder(folder)


def _let_go(replaced: str, target: str) -> None:
    """Removes a checkpoint that another one has replaced. Folders in it, which no save makes, go to the new one."""
    for entry in list(os.scandir(replaced)) if os.path.isdir(replaced) else ():
        place = os.path.join(target, entry.name)
        if entry.is_dir(follow_symlinks=False) and not os.path.lexists(place):
            os.rename(entry.path, place)
    _disk.remove_folder(replaced)


def _name(iteration: int) -> str:
    return f"iter_{iteration:07d}"


def _aside(target: str, why: str) -> str:
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.{why}")
