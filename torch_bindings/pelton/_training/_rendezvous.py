"""How the ranks of a job learn where their coordinator is, and with which token; and how they join it.

Either `pelton run` has put both into the environment, or rank 0 starts the coordinator on a free port and publishes
both in a torch store (`_store_meeting`). The token never crosses a network in clear unless the user says that it may.
"""

from __future__ import annotations

import datetime
import os
import secrets
from dataclasses import dataclass

from torch.distributed import Store  # type: ignore[attr-defined]  # exported on a condition
from torch.distributed.rendezvous import rendezvous

from pelton import _C
from pelton._training import _addresses, _daemons, _fork, _launchers, _store_meeting, env
from pelton.errors import FailedPrecondition, InvalidArgument

DAEMON = "unix:"  # before the path of the socket of this rank's pelton-daemon


@dataclass(frozen=True)
class MeetingPlace:
    """Where a job's ranks join. Threads: a value. Owns: the coordinator, on rank 0; the store it was published in."""

    address: str
    token: str
    job: str
    coordinator: _C.Coordinator | None
    store: Store | None = None


def join(
    place: MeetingPlace, rank: int, world_size: int, timeout_s: float, join_timeout_s: float | None = None
) -> _C.Backend:
    """Starts this process's backend: joins the job at its meeting place, with everything that the environment says.

    Args:
      place: of the job.
      rank: this process's number there.
      world_size: number of the job's ranks.
      timeout_s: of each later operation.
      join_timeout_s: until all ranks have joined; PELTON_JOIN_TIMEOUT if None.

    Raises:
      InvalidArgument: a variable is wrong, or differs from what another rank says.
      DeadlineExceeded: ranks are missing; the text names them.
    """
    return _C.Backend(
        rank=rank,
        world_size=world_size,
        coordinator_address=place.address,
        job_id=place.job,
        job_token=place.token,
        timeout_s=timeout_s,
        join_timeout_s=env.join_timeout_s() if join_timeout_s is None else join_timeout_s,
        tls=tls_from_environment(),
        interface=env.interface(),
        host_label=env.host_label(),
        schedules=env.schedules(),
        wire=env.wire(),
        heartbeat_timeout_s=env.heartbeat_timeout_s(),
    )


def tls_from_environment() -> dict[str, str]:
    """This rank's certificate files for the control plane, as `_C` takes them: PELTON_TLS_CA, PELTON_TLS_CERT and
    PELTON_TLS_KEY, all or none; PELTON_TLS_NAME where the coordinator's certificate is not made out to its address.
    """
    names = {"ca": "CA", "certificate": "CERT", "key": "KEY", "server_name": "NAME"}
    found = {name: os.environ.get(f"PELTON_TLS_{variable}", "") for name, variable in names.items()}
    return {name: value for name, value in found.items() if value}


def from_launcher(rank: int, sequence: int) -> MeetingPlace | None:
    """The meeting place that `pelton run` names in PELTON_COORDINATOR and PELTON_JOB_TOKEN; None if it does not.

    With `--backend daemon` that is this rank's pelton-daemon, which has the token.

    Raises:
      InvalidArgument: only one of them is set, or one is malformed.
      FailedPrecondition: the token would have to cross a network in clear.
      ResourceExhausted or PeerLost: rank 0 cannot serve there.
    """
    address, token = os.environ.get("PELTON_COORDINATOR"), os.environ.get("PELTON_JOB_TOKEN")
    if address is None and token is None:
        return None
    if address is not None and address.startswith(DAEMON):
        return MeetingPlace(address, "", "default", None)
    if address is None or not _store_meeting.ADDRESS.fullmatch(address):
        raise InvalidArgument(f"PELTON_COORDINATOR={address!r} in the environment: must be host:port")
    if token is None or not _store_meeting.TOKEN.fullmatch(token):
        raise InvalidArgument("PELTON_JOB_TOKEN in the environment: must be 16 to 256 letters and digits")
    if not _is_protected() and not _addresses.is_here(address.rpartition(":")[0]):
        raise FailedPrecondition(_in_clear(f"rank {rank} is not on the host of PELTON_COORDINATOR={address}"))
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
    coordinator, token = _serve(_addresses.LOOPBACK)
    return MeetingPlace(coordinator.address, token, "alone", coordinator)


def through_store(store: Store, rank: int, world_size: int, timeout_s: float) -> MeetingPlace:
    """Rank 0 starts the coordinator and publishes it in `store`; the others wait for that. With PELTON_BACKEND=daemon
    it lives in rank 0's pelton-daemon (`_daemons`).

    It listens on loopback where all ranks are on rank 0's host, as they say themselves, else on the address that this
    host has towards the store.

    Raises:
      DeadlineExceeded: ranks have not come in time; the text names them.
      FailedPrecondition: the token would have to cross a network in clear.
      InvalidArgument: this host has no address for others, or what was published is malformed.
    """
    if env.is_backend_in_daemon():
        path, job = _daemons.attach(store, rank, world_size, timeout_s, lambda guests: _interface(store, guests))
        return MeetingPlace(f"{DAEMON}{path}", "", job, None, store)
    if rank != 0:
        found = _store_meeting.follow(store, rank, world_size, timeout_s)
        return MeetingPlace(found.address, found.token, found.job, None, store)
    served: list[_C.Coordinator] = []

    def serve(guests: list[_store_meeting.Guest]) -> tuple[str, str]:
        coordinator, token = _serve(_interface(store, guests))
        served.append(coordinator)
        return coordinator.address, token

    record = _store_meeting.lead(store, world_size, timeout_s, serve)
    return MeetingPlace(record.address, record.token, record.job, served[0], store)


def from_environment(rank: int, world_size: int, timeout_s: float) -> MeetingPlace:
    """The same, through the store that MASTER_ADDR and MASTER_PORT (or torchrun's agent) name.

    Raises:
      InvalidArgument: a variable is missing.
      PeltonError: as `through_store`.
    """
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if address is None or port is None:
        missing = " and ".join(name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ)
        raise InvalidArgument(
            f"{missing} missing in the environment: rank {rank} of {world_size} (from {_launchers.source()}) does not "
            "know where to meet the others; set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there"
        )
    where = (address, port, rank, world_size)
    if where not in _kept_stores:

        def open_store() -> Store:
            rounds = rendezvous("env://", rank, world_size, timeout=datetime.timedelta(seconds=timeout_s))
            store: Store = next(iter(rounds))[0]
            return store

        late = f"rank {rank} could not reach the store at {address}:{port} within {timeout_s:g} s"
        _kept_stores[where] = _store_meeting.in_time(open_store, late)
    return through_store(_kept_stores[where], rank, world_size, timeout_s)


# Until the process ends: after a destroy a quick rank comes back to rank 0's store before rank 0 does, and one that
# rank 0 were about to replace would leave it in the lurch.
_kept_stores: dict[tuple[str, str, int, int], Store] = {}


def _forget_in_child() -> None:
    for store in _kept_stores.values():
        _fork.keep_forever(store)
    _kept_stores.clear()
    _kept.clear()


_fork.forget_in_child(_forget_in_child)


def _serve(interface: str) -> tuple[_C.Coordinator, str]:
    """A coordinator and its token."""
    token = secrets.token_hex(16)
    host = f"[{interface}]" if ":" in interface else interface
    coordinator = _C.Backend.serve_coordinator(f"{host}:0", token, tls_from_environment(), env.heartbeat_timeout_s())
    return coordinator, token


def _interface(store: Store, guests: list[_store_meeting.Guest]) -> str:
    """Where rank 0 listens for the ranks that come; it is the first of them."""
    elsewhere = [rank for rank, guest in enumerate(guests) if guest.host != guests[0].host]
    if not elsewhere:
        return _addresses.LOOPBACK
    if not _is_protected():
        raise FailedPrecondition(
            _in_clear(
                f"rank {elsewhere[0]} is on another host ({guests[elsewhere[0]].name}) than rank 0 ({guests[0].name})"
            )
        )
    return _addresses.serving_address(store)


def _is_protected() -> bool:
    """Whether the token may be sent to another host."""
    return bool(tls_from_environment()) or env.is_insecure()


def _in_clear(why: str) -> str:
    return (
        f"{why}, and the job's token would cross the network in clear: who reads it can join the job. Give every rank "
        "a certificate (PELTON_TLS_CA, PELTON_TLS_CERT, PELTON_TLS_KEY), or, on a network that you trust, set "
        "PELTON_INSECURE=1 on every rank (`pelton run --insecure` does)"
    )
