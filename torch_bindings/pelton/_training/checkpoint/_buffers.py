"""Memory that outlives its process: one snapshot in one of the launcher's buffers."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
from collections.abc import Sequence

import torch
from pelton_run.snapshots import BUFFERS_NAME, BUFFERS_VARIABLE

from pelton.errors import InvalidArgument

_MAGIC = 0x31504E534E544C50  # "PLTNSNP1"
_ALIGNMENT = 64
# The words of the header, which takes as many bytes as the alignment.
_KIND, _SEQUENCE, _STEP, _TEXT, _TOTAL = range(5)
_WORDS = _ALIGNMENT // 8


class SnapshotBuffer:
    """One of a rank's buffers. What it holds counts from the store of its sequence number on.

    A process that dies before that store leaves the number 0, which says that the buffer holds nothing.
    Threads: one at a time. Owns: the mapping.
    """

    def __init__(self, descriptor: int) -> None:
        """Args:
        descriptor: of the buffer's memory, borrowed.
        """
        self._descriptor = descriptor
        if os.fstat(descriptor).st_size < _ALIGNMENT:
            os.ftruncate(descriptor, _ALIGNMENT)
        self._map()

    def _map(self) -> None:
        self._memory = mmap.mmap(self._descriptor, 0)
        # A word is written by one store.
        self._words = (ctypes.c_uint64 * _WORDS).from_buffer(self._memory)

    @property
    def sequence(self) -> int:
        """The number of the snapshot that it holds, in the order of keeping; 0 for none."""
        words = self._words
        is_whole = words[_KIND] == _MAGIC and words[_TOTAL] <= len(self._memory)
        return int(words[_SEQUENCE]) if is_whole else 0

    @property
    def step(self) -> int:
        """The step of the snapshot that it holds."""
        return int(self._words[_STEP])

    def clear(self) -> None:
        """It holds nothing from now on."""
        self._words[_SEQUENCE] = 0

    def begin(self, text: bytes, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Makes room for a snapshot in the place of what it holds, and holds nothing until `seal`.

        Args:
          text: describes it.
          tensors: belong into it.

        Returns:
          The first byte of each tensor's place.

        Raises:
          OSError: there is not enough memory.
        """
        self.clear()
        total = _aligned(_ALIGNMENT + len(text)) + sum(map(_aligned_size, tensors))
        if total > len(self._memory):
            os.posix_fallocate(self._descriptor, 0, total)  # an error here, where a store would end the process
            self._map()
        self._memory[_ALIGNMENT : _ALIGNMENT + len(text)] = text
        self._words[_TEXT], self._words[_TOTAL] = len(text), total
        begins = itertools.accumulate(map(_aligned_size, tensors), initial=_aligned(_ALIGNMENT + len(text)))
        return list(begins)[:-1]

    def fill(self, place: int, tensor: torch.Tensor) -> None:
        """Copies a tensor to its place."""
        if tensor.nbytes:
            plain = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            self._bytes(place, tensor.nbytes).copy_(plain)

    def memory(self) -> torch.Tensor:
        """All of it, in which places are counted; of use until the next `begin`. Shape: [bytes]."""
        return self._bytes(0, len(self._memory))

    def seal(self, sequence: int, step: int) -> None:
        """All places are filled: what it holds counts from here on.

        Args:
          sequence: the snapshot's number, above 0.
          step: its step.
        """
        self._words[_KIND], self._words[_STEP] = _MAGIC, step
        self._words[_SEQUENCE] = sequence

    def text(self) -> bytes:
        """What describes the snapshot."""
        return self._memory[_ALIGNMENT : _ALIGNMENT + int(self._words[_TEXT])]

    def read(self, tensors: Sequence[torch.Tensor]) -> None:
        """Fills tensors like those that were written, in the same order.

        Raises:
          InvalidArgument: they are larger than what was written.
        """
        at = _aligned(_ALIGNMENT + int(self._words[_TEXT]))
        for tensor in tensors:
            if at + tensor.nbytes > int(self._words[_TOTAL]):
                raise InvalidArgument(f"the snapshot of step {self.step} is malformed: it ends before its tensors do")
            if tensor.nbytes:
                plain = self._bytes(at, tensor.nbytes).view(tensor.dtype)
                tensor.copy_(plain.reshape(tensor.shape))
            at += _aligned_size(tensor)

    def _bytes(self, begin: int, count: int) -> torch.Tensor:
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=count, offset=begin)


def inherited_buffers() -> list[SnapshotBuffer]:
    """Those that the launcher gave to this process; none where it restarts nobody."""
    numbers = [int(word) for word in os.environ.get(BUFFERS_VARIABLE, "").split(",") if word.isdigit()]
    return [SnapshotBuffer(number) for number in numbers if _is_buffer(number)]


def _is_buffer(descriptor: int) -> bool:
    """False in a process that got the variable, but not the descriptors."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"/memfd:{BUFFERS_NAME}")
    except OSError:
        return False


def _aligned_size(tensor: torch.Tensor) -> int:
    return _aligned(tensor.nbytes)


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
