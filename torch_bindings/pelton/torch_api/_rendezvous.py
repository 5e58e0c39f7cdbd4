"""How the ranks of a job learn where their coordinator is, and with which token.

Either `pelton run` has put both into the environment, or rank 0 starts the coordinator on a free port and publishes
both in a torch store. What comes from a store is parsed as JSON and checked field by field.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # exported on a condition
from torch.distributed.rendezvous import rendezvous

from pelton import _C
from pelton.errors import DeadlineExceeded, InvalidArgument, PeerLost
from pelton.torch_api import _fork, env
from pelton.torch_api._aside import aside

_T = TypeVar("_T")
_LOOPBACK = "127.0.0.1"
_LONGEST_RECORD_BYTES = 4096
_SLICE_S = 0.1
_ADDRESS = re.compile(r"(?:[0-9.]{7,15}|\[[0-9a-fA-F:.%a-z]{2,64}\]|[A-Za-z0-9_.-]{1,253}):[0-9]{1,5}")
_TOKEN = re.compile(r"[0-9A-Za-z_-]{16,256}")


@dataclass(frozen=True)
class MeetingPlace:
    """Where a job's ranks join. Threads: a value. Owns: the coordinator, on rank 0; the store it was published in."""

    address: str
    token: str
    job: str
    coordinator: _C.Coordinator | None
    store: Store | None = None


def tls_from_environment() -> dict[str, str]:
    """This rank's certificate files for the control plane, as `_C` takes them: PELTON_TLS_CA, PELTON_TLS_CERT and
    PELTON_TLS_KEY, all or none; PELTON_TLS_NAME where the coordinator's certificate is not made out to its address.
    """
    names = {"ca": "CA", "certificate": "CERT", "key": "KEY", "server_name": "NAME"}
    found = {name: os.environ.get(f"PELTON_TLS_{variable}", "") for name, variable in names.items()}
    return {name: value for name, value in found.items() if value}


def from_launcher(rank: int, world_size: int, sequence: int) -> MeetingPlace | None:
    """The meeting place that `pelton run` names in PELTON_COORDINATOR and PELTON_JOB_TOKEN; None if it does not.

    Raises:
      InvalidArgument: only one of them is set, or one is malformed.
      ResourceExhausted or PeerLost: rank 0 cannot serve there.
    """
    address, token = os.environ.get("PELTON_COORDINATOR"), os.environ.get("PELTON_JOB_TOKEN")
    if address is None and token is None:
        return None
    if address is None or not _ADDRESS.fullmatch(address):
        raise InvalidArgument(f"PELTON_COORDINATOR={address!r} in the environment: must be host:port")
    if token is None or not _TOKEN.fullmatch(token):
        raise InvalidArgument("PELTON_JOB_TOKEN in the environment: must be 16 to 256 letters and digits")
    coordinator = _kept_coordinator(address, token) if rank == 0 else None
    return MeetingPlace(address, token, f"job-{sequence}", coordinator)


_kept: dict[str, _C.Coordinator] = {}


def _kept_coordinator(address: str, token: str) -> _C.Coordinator:
    """The coordinator on the launcher's port. It lives until the process ends, because after a destroy and a new
    initialisation a quick rank may come back before the others have left.
    """
    if address not in _kept:
        _kept[address] = _C.Backend.serve_coordinator(address, token, tls_from_environment(), env.heartbeat_timeout_s())
    return _kept[address]


def is_kept(coordinator: _C.Coordinator) -> bool:
    """Whether a coordinator serves on a launcher's port and so outlives its session."""
    return any(kept is coordinator for kept in _kept.values())


def stop_kept_coordinators(timeout_s: float) -> None:
    """Ends the coordinators on launchers' ports when their ranks have left. Blocks: at most `timeout_s` for each."""
    while _kept:
        _kept.popitem()[1].stop(timeout_s)


def alone() -> MeetingPlace:
    """A meeting place for a world of one rank."""
    return _serve(_LOOPBACK, "alone", None)


def through_store(store: Store, rank: int, world_size: int, sequence: int, timeout_s: float) -> MeetingPlace:
    """Rank 0 starts the coordinator and publishes it in `store`; the others wait for that.

    Raises:
      DeadlineExceeded: rank 0 has published nothing in time.
      InvalidArgument: what was published is malformed.
    """
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"pelton/{restart}/{sequence}/coordinator"
    job = f"job-{restart}-{sequence}"
    if rank == 0:
        place = _serve(_interface(world_size), job, store)
        store.set(key, json.dumps({"address": place.address, "token": place.token}))
        return place
    address, token = _parse(_read(store, key, timeout_s))
    return MeetingPlace(address, token, job, None, store)


def from_environment(rank: int, world_size: int, sequence: int, timeout_s: float) -> MeetingPlace:
    """The same, through the store that MASTER_ADDR and MASTER_PORT (or torchrun's agent) name.

    Raises:
      DeadlineExceeded: the store was not reached, or nothing published, in time.
      ValueError: a variable is missing.
    """
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    where = (address, port, rank, world_size)
    if where not in _kept_stores:

        def open_store() -> Store:
            rounds = rendezvous("env://", rank, world_size, timeout=datetime.timedelta(seconds=timeout_s))
            store: Store = next(iter(rounds))[0]
            return store

        late = f"rank {rank} could not reach the store at {address}:{port} within {timeout_s:g} s"
        _kept_stores[where] = _in_time(open_store, late)
    return through_store(_kept_stores[where], rank, world_size, sequence, timeout_s)


# Until the process ends: after a destroy a quick rank comes back to rank 0's store before rank 0 does, and one that
# rank 0 were about to replace would leave it in the lurch. Each initialisation has keys of its own.
_kept_stores: dict[tuple[str | None, str | None, int, int], Store] = {}


def _forget_in_child() -> None:
    for store in _kept_stores.values():
        _fork.keep_forever(store)
    _kept_stores.clear()
    _kept.clear()


_fork.forget_in_child(_forget_in_child)


def _serve(interface: str, job: str, store: Store | None) -> MeetingPlace:
    token = secrets.token_hex(16)
    host = f"[{interface}]" if ":" in interface else interface
    coordinator = _C.Backend.serve_coordinator(f"{host}:0", token, tls_from_environment(), env.heartbeat_timeout_s())
    return MeetingPlace(coordinator.address, token, job, coordinator, store)


def _interface(world_size: int) -> str:
    """The address that rank 0 serves on: loopback where all ranks are here, else the one MASTER_ADDR leads to."""
    if env.get_local_size() == world_size:
        return _LOOPBACK
    name = env.get_master_addr()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise InvalidArgument(f"MASTER_ADDR={name!r} in the environment: {error}") from error
    return _LOOPBACK if ipaddress.ip_address(found).is_loopback else str(found)


def _read(store: Store, key: str, timeout_s: float) -> bytes:
    def wait_and_get() -> bytes:
        _wait_for(store, key, timeout_s)
        return bytes(store.get(key))

    return _in_time(wait_and_get, f"rank 0 has not published its coordinator within {timeout_s:g} s")


def _wait_for(store: Store, key: str, timeout_s: float) -> None:
    """Waits for a key in slices, between which Python runs the handlers of signals."""
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            return store.wait([key], datetime.timedelta(seconds=min(_SLICE_S, max(left_s, 0.001))))
        except (dist.DistStoreError, dist.DistNetworkError) as error:
            if left_s <= _SLICE_S or not isinstance(error, dist.DistStoreError):
                raise


def _in_time(action: Callable[[], _T], late: str) -> _T:
    try:
        return aside(action)
    except dist.DistStoreError as error:
        raise DeadlineExceeded(f"{late} ({error})") from error
    except dist.DistNetworkError as error:
        kind = DeadlineExceeded if "timed out" in str(error) else PeerLost
        raise kind(f"{late} ({error})") from error


def _parse(record: bytes) -> tuple[str, str]:
    """Address and token out of a published record, which anybody with access to the store may have written."""
    try:
        if len(record) > _LONGEST_RECORD_BYTES:
            raise ValueError(f"{len(record)} bytes are too many")
        fields = json.loads(record)
        address, token = fields["address"], fields["token"]
        if not (isinstance(address, str) and _ADDRESS.fullmatch(address)):
            raise ValueError("address")
        if not (isinstance(token, str) and _TOKEN.fullmatch(token)):
            raise ValueError("token")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidArgument(f"the store's record of the coordinator is malformed: {error!r}") from None
    return address, token
