"""How ranks that share a torch store agree on one coordinator, however often any of them has tried before.

Rank 0 takes a new number from the store for each attempt, the epoch, and names it under `leader`. Every other rank
answers to the epoch that it finds there with a random word of its own, and takes only a record that is addressed to
this word. So a record of an earlier attempt, of an earlier group, or of a rank 0 that has died is never taken for the
present one, and ranks that have tried unequal numbers of times still meet. Whatever comes from the store is parsed as
JSON and checked field by field.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # exported on a condition

from pelton._training import _addresses, _launchers
from pelton._training._aside import aside
from pelton.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, PeerLost, PeltonError

ADDRESS = re.compile(r"(?:[0-9.]{7,15}|\[[0-9a-fA-F:.%a-z]{2,64}\]|[A-Za-z0-9_.-]{1,253}):[0-9]{1,5}")
TOKEN = re.compile(r"[0-9A-Za-z_-]{16,256}")

_T = TypeVar("_T")
_LINE = re.compile(r"[ -~]{1,256}")
_LONGEST_RECORD_BYTES = 4096
_LONGEST_TEXT = 1024
_FIRST_NAP_S, _LONGEST_NAP_S = 0.002, 0.1
NOBODY = "none"  # lives as a daemon for a rank
_PATIENCE_S = 1.0  # with a leader who may be dead, before another one is looked for


@dataclass(frozen=True)
class Guest:
    """A rank that comes. Threads: a value. Owns: nothing."""

    word: str  # of this attempt of it alone
    host: str  # the same for ranks that reach each other by loopback
    name: str  # of the host, for people
    daemon: str = NOBODY  # the job of the pelton-daemon that lives for this rank


@dataclass(frozen=True)
class Record:
    """Where the job's coordinator is. Threads: a value. Owns: nothing."""

    address: str
    token: str
    job: str


Serve = Callable[[list[Guest]], tuple[str, str]]
Interface = Callable[[list[Guest]], str]


def lead(
    store: Store,
    world_size: int,
    timeout_s: float,
    serve: Serve,
    daemon: str = NOBODY,
    job: Callable[[list[Guest]], str] | None = None,
) -> Record:
    """Rank 0's part.

    Args:
      store: all ranks' store.
      world_size: number of ranks.
      timeout_s: until all have answered.
      serve: starts the coordinator for the ranks that come, and returns its address and token.
      daemon: the job of the daemon that lives for rank 0.
      job: the name of the job; that of this attempt if None.

    Raises:
      DeadlineExceeded: ranks have not answered in time; the text names them.
      What `serve` raises: the other ranks are told.
    """
    store = PrefixStore(_prefix(), store)
    epoch = str(in_time(lambda: store.add("epoch", 1), "rank 0 could not reach the store"))
    try:
        store.set("leader", epoch)
        guests = [_guest(daemon), *_answers(store, epoch, world_size, timeout_s)]
        address, token = serve(guests)
    except PeltonError as error:
        present = (_present(store, epoch, rank) for rank in range(1, world_size))
        _publish(store, epoch, filter(None, present), {"error": str(error)[:_LONGEST_TEXT]})
        raise
    finally:
        store.set("leader", "")  # it stays as a key, so that nobody waits for it in vain
    record = Record(address, token, f"job-{_restart()}-{epoch}" if job is None else job(guests))
    _publish(store, epoch, guests[1:], asdict(record))
    return record


def follow(store: Store, rank: int, world_size: int, timeout_s: float, daemon: str = NOBODY) -> Record:
    """Another rank's part.

    Raises:
      DeadlineExceeded: rank 0 has published nothing in time; the text names the ranks that have not come.
      FailedPrecondition: rank 0 has given up; the text is its own.
      InvalidArgument: what was published is malformed.
    """
    store = PrefixStore(_prefix(), store)
    return _Follower(store, rank, world_size, timeout_s, daemon).record()


class _Follower:
    """One attempt of one rank. Threads: one. Owns: nothing."""

    def __init__(self, store: Store, rank: int, world_size: int, timeout_s: float, daemon: str) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._guest = _guest(daemon)
        self._epoch = ""

    def record(self) -> Record:
        nap_s = _FIRST_NAP_S
        while True:
            if self._epoch and self._wait(self._key("record"), _PATIENCE_S):
                return self._taken()
            if not self._epoch and not self._wait("leader", self._timeout_s):
                raise self._late()
            leader = self._store.get("leader").decode(errors="replace")
            if leader and leader != self._epoch:
                self._epoch = leader
                self._store.set(self._key("answer"), json.dumps(asdict(self._guest)))
                continue
            if time.monotonic() > self._deadline:
                raise self._late()
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)

    def _key(self, kind: str) -> str:
        return _key(self._epoch, kind, str(self._rank) if kind == "answer" else self._guest.word)

    def _wait(self, key: str, patience_s: float) -> bool:
        """Whether there is such a key, within a time that the deadline bounds."""
        until = min(time.monotonic() + patience_s, self._deadline)
        return _wait_for(self._store, [key], until, self._late_text())

    def _taken(self) -> Record:
        record = self._store.get(self._key("record"))
        with contextlib.suppress(RuntimeError):  # it holds the token; not every store can delete
            self._store.delete_key(self._key("record"))
            self._store.delete_key(self._key("answer"))
        return parse(record)

    def _late_text(self) -> str:
        return f"rank 0 has not published its coordinator within {self._timeout_s:g} s"

    def _late(self) -> DeadlineExceeded:
        if not self._epoch:
            return DeadlineExceeded(f"{self._late_text()}: it has not come to the store")
        others = (rank for rank in range(1, self._world_size) if rank != self._rank)
        missing = [str(rank) for rank in others if not self._store.check([_key(self._epoch, "answer", str(rank))])]
        self._store.set(self._key("answer"), "")  # a later rank 0 must not count on this attempt
        why = f"missing: {', '.join(missing)}" if missing else "all other ranks have come"
        return DeadlineExceeded(f"{self._late_text()}: {why}")


def _wait_for(store: Store, keys: list[str], until: float, late: str) -> bool:
    """Whether all keys are there in time.

    Asks again and again, because the store writes a warning for every wait of its own that ends without the keys.

    Raises:
      PeerLost: the store cannot be reached any more; the text is `late` and the store's.
    """
    nap_s = _FIRST_NAP_S
    while not in_time(lambda: store.check(keys), late):
        left_s = until - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(nap_s, left_s))
        nap_s = min(2 * nap_s, _LONGEST_NAP_S)
    return True


def in_time(action: Callable[[], _T], late: str) -> _T:
    """Runs an action on a store, on a thread of its own, so that Ctrl-C is heard.

    Raises:
      DeadlineExceeded: it timed out; the text is `late` and the store's.
      PeerLost: the store cannot be reached.
    """
    try:
        return aside(action)
    except dist.DistStoreError as error:
        raise DeadlineExceeded(f"{late} ({error})") from error
    except dist.DistNetworkError as error:
        kind = DeadlineExceeded if "timed out" in str(error) else PeerLost
        raise kind(f"{late} ({error})") from error


def parse(record: bytes) -> Record:
    """A published record, which anybody with access to the store may have written.

    Raises:
      FailedPrecondition: it says why there is no coordinator.
      InvalidArgument: it is malformed.
    """
    try:
        fields = _fields(record)
        if isinstance(fields.get("error"), str):
            raise FailedPrecondition(f"rank 0 has given up: {fields['error'][:_LONGEST_TEXT]}")
        return Record(
            _checked(fields["address"], ADDRESS), _checked(fields["token"], TOKEN), _checked(fields["job"], _LINE)
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, PeltonError):
            raise
        raise InvalidArgument(f"the store's record of the coordinator is malformed: {error!r}") from None


def _fields(record: bytes) -> dict[str, Any]:
    if len(record) > _LONGEST_RECORD_BYTES:
        raise ValueError(f"{len(record)} bytes are too many")
    fields = json.loads(record)
    if not isinstance(fields, dict):
        raise ValueError("is no record")
    return fields


def _checked(value: object, form: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError("one of its fields")
    return value


def _answers(store: Store, epoch: str, world_size: int, timeout_s: float) -> list[Guest]:
    ranks = range(1, world_size)
    keys = [_key(epoch, "answer", str(rank)) for rank in ranks]
    guests: list[Guest | None] = []
    until = time.monotonic() + timeout_s
    while keys:
        _wait_for(store, keys, until, "rank 0 lost the store while it waited for the other ranks")
        guests = [_present(store, epoch, rank) for rank in ranks]
        if None not in guests or time.monotonic() > until:
            break
        time.sleep(_LONGEST_NAP_S)  # one has given up in this epoch, and may come back to it
    missing = [str(rank) for rank, guest in zip(ranks, guests) if guest is None]
    if missing:
        raise DeadlineExceeded(
            f"{world_size - len(missing)} of {world_size} ranks came to the store within {timeout_s:g} s; "
            f"missing: {', '.join(missing)}"
        )
    return [guest for guest in guests if guest is not None]


def _present(store: Store, epoch: str, rank: int) -> Guest | None:
    """What a rank has answered; None if it has not, or no longer waits."""
    key = _key(epoch, "answer", str(rank))
    if not store.check([key]):
        return None
    answer = store.get(key)
    if not answer:
        return None
    try:
        fields = _fields(answer)
        return Guest(*(_checked(fields[name], _LINE) for name in ("word", "host", "name", "daemon")))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidArgument(f"the store's answer of rank {rank} is malformed: {error!r}") from None


def _publish(store: Store, epoch: str, guests: Iterable[Guest], fields: dict[str, str]) -> None:
    for guest in guests:
        store.set(_key(epoch, "record", guest.word), json.dumps(fields))


def _guest(daemon: str) -> Guest:
    name = socket.gethostname()[:64] or "unnamed"
    return Guest(secrets.token_hex(8), _addresses.host_identity(), name, daemon)


def _key(epoch: str, kind: str, whose: str) -> str:
    return f"{epoch}/{kind}/{whose}"


def _prefix() -> str:
    return f"pelton/{_launchers.job_identity()}/{_restart()}"


def _restart() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
