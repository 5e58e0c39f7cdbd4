"""What processes hold that could outlive them: sockets, shared memory and files, as the kernel lists them."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SOCKET_TABLES = ("unix", "tcp", "tcp6")
_INODE_COLUMN = {"unix": 6, "tcp": 9, "tcp6": 9}
_TCP_LISTEN = "0A"
_MEMFD = re.compile(r"/memfd:")
_SHARED_FOLDERS = ("/dev/shm/", "/tmp/")
# A checkout, an environment or an interpreter may lie below such a folder; a process that maps their files leaves none.
_INSTALLED = tuple(
    f"{Path(folder).resolve()}/" for folder in (Path(__file__).parents[2], sys.prefix, sys.base_prefix, sys.exec_prefix)
)


@dataclass
class Belongings:
    """Threads: a value. Owns: nothing but names and numbers."""

    sockets: set[int] = field(default_factory=set)  # inodes
    memory: set[int] = field(default_factory=set)  # inodes of memfds
    files: set[str] = field(default_factory=set)  # in folders that everyone shares


def of_processes(pids: Iterable[int]) -> Belongings:
    """What these processes hold now."""
    found = Belongings()
    for pid in pids:
        for inode, name in _held_by(pid):
            if name.startswith("socket:["):
                found.sockets.add(int(name[len("socket:[") : -1]))
            elif _MEMFD.match(name):
                found.memory.add(inode)
            elif _could_be_left(name):
                found.files.add(name)
    return found


def _could_be_left(name: str) -> bool:
    return name.startswith(_SHARED_FOLDERS) and not name.startswith(_INSTALLED) and not name.endswith(" (deleted)")


def still_there(belongings: Belongings) -> dict[str, list[str]]:
    """What is left of them, by kind; kinds of which nothing is left are not named."""
    everyones = of_processes(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    left = {
        "sockets": [line for _, inode, line in _sockets() if inode in belongings.sockets],
        "memory": [f"memfd {inode}" for inode in belongings.memory & everyones.memory],
        "files": [name for name in belongings.files if os.path.exists(name)],
    }
    return {kind: names for kind, names in left.items() if names}


def abstract_names(belongings: Belongings) -> list[str]:
    """Names of their Unix sockets in the abstract namespace."""
    lines = [line.split() for table, inode, line in _sockets() if table == "unix" and inode in belongings.sockets]
    return [words[7] for words in lines if len(words) > 7 and words[7].startswith("@")]


def listening_addresses(belongings: Belongings) -> list[str]:
    """Addresses their TCP sockets listen at, as /proc/net writes them: hexadecimal, "address:port"."""
    lines = [line.split() for table, inode, line in _sockets() if table != "unix" and inode in belongings.sockets]
    return [words[1] for words in lines if words[3] == _TCP_LISTEN]


def _held_by(pid: int) -> Iterator[tuple[int, str]]:
    """(inode, name) of what a process has open or mapped; nothing of one that has ended or is another user's."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.stat(entry.path).st_ino, os.readlink(entry.path)
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            words = line.split(maxsplit=5)
            if len(words) == 6:
                yield int(words[4]), words[5]


def _sockets() -> Iterator[tuple[str, int, str]]:
    """(table, inode, line) of every socket of this network namespace."""
    for table in _SOCKET_TABLES:
        with contextlib.suppress(OSError):  # no IPv6
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                yield table, int(line.split()[_INODE_COLUMN[table]]), line
