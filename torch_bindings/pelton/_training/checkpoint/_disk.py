"""File operations whose effect outlasts a crash: nothing here is done before it is on the disk."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, BinaryIO

import torch

from pelton.errors import InvalidArgument

_BUFFER_BYTES = 1 << 20


class _Raw(io.RawIOBase):
    """Writes to a descriptor. Threads: one at a time. Owns: nothing; the descriptor is the caller's."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return os.write(self._descriptor, data)


def write(path: str, content: Callable[[BinaryIO], object]) -> None:
    """Writes a file, and waits until it is on the disk; its name is there only after `sync_folder`.

    Args:
      path: where; what is there is overwritten.
      content: writes to the open file.

    Raises:
      OSError: it could not be written in full.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    raw = _Raw(descriptor)
    try:
        file = io.BufferedWriter(raw, _BUFFER_BYTES)
        content(file)
        file.flush()
        os.fsync(descriptor)
    finally:
        raw.close()  # a buffer that outlives this would write what is left in it to whatever has the number by then
        os.close(descriptor)


def write_tensors(path: str, value: Any) -> None:
    """The same with `torch.save`.

    Raises:
      OSError: it could not be written in full.
    """
    failure: list[OSError] = []

    def content(file: BinaryIO) -> None:
        try:
            torch.save(value, _Telling(file, failure))  # type: ignore[arg-type]
        except Exception:
            if failure:  # torch's writer hides what the system said behind an error of its own
                raise failure[0] from None
            raise

    write(path, content)


class _Telling:
    """A file that keeps what its writes failed with. Threads: one at a time. Owns: nothing."""

    def __init__(self, file: BinaryIO, failure: list[OSError]) -> None:
        self._file = file
        self._failure = failure

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self._failure.append(error)
            raise

    def flush(self) -> None:
        self._file.flush()


def read_tensors(path: str) -> Any:
    """What `write_tensors`, or Bagua, has written; tensors on the CPU. No code that the file holds is run.

    Raises:
      InvalidArgument: it cannot be read, or holds more than tensors and plain values; the text names the file.
      FileNotFoundError: it is not there.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        said = str(error).split("\n", 1)[0]
        raise InvalidArgument(f"{path}: cannot be read as tensors and plain values alone: {said}") from error


def make_folders(path: str) -> None:
    """Makes a folder and those above it that are missing."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_folders(parent)
    os.mkdir(path)
    sync_folder(parent)


def sync_folder(path: str) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: str, target: str) -> None:
    """Gives a file or folder another name in the same folder, at once and for good."""
    os.rename(source, target)
    sync_folder(os.path.dirname(os.path.abspath(target)))


def remove_folder(path: str) -> None:
    """Removes a folder with all that is in it; nothing happens if there is none."""
    if not os.path.isdir(path):
        return
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            remove_folder(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(path)
