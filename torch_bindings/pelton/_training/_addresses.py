"""Where this process is: which host, and by which address other hosts reach it."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket

from torch.distributed import Store  # type: ignore[attr-defined]  # exported on a condition

from pelton._training import env
from pelton.errors import InvalidArgument

LOOPBACK = "127.0.0.1"
_FAR_AWAY = "192.0.2.1"  # of RFC 5737: a route to it is the default route, and nothing is sent there
_DISCARD = 9


def host_identity() -> str:
    """The same for two processes that reach each other by loopback: the running kernel and its network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return platform.node()


def serving_address(store: Store) -> str:
    """The address of this host that ranks on other hosts reach it by. Never loopback.

    It is that of PELTON_INTERFACE, else of the interface on the route to the store's host, else, where that is this
    host itself under a loopback name (Debian gives 127.0.1.1 to a machine's own name), of the default route.

    Returns:
      A numeric address, or the name of an interface.

    Raises:
      InvalidArgument: there is none; the text says what to set.
    """
    if env.interface():
        return env.interface()
    for towards in (_store_host(store), _FAR_AWAY):
        own = _own_address(towards) if towards else None
        if own is not None and not ipaddress.ip_address(own).is_loopback:
            return own
    raise InvalidArgument(
        "PELTON_INTERFACE is not set in the environment, and this host has no route by which other hosts could reach "
        "rank 0; set it on every rank to the network interface between the hosts"
    )


def is_here(host: str) -> bool:
    """Whether a connection to a host stays on this one. A name that cannot be resolved is elsewhere."""
    try:
        families = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(_is_own(family, address) for family, _, _, _, address in families)


def _is_own(family: int, address: tuple[object, ...]) -> bool:
    if ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        return True
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def _store_host(store: Store) -> str:
    """The host that a store is reached at: its own word, or MASTER_ADDR; empty if nobody says."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", "") or os.environ.get("MASTER_ADDR", ""))


def _own_address(towards: str) -> str | None:
    """This host's address on the route to another one; None where there is no such route, or no such host."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(towards, _DISCARD, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # of a datagram socket: only looks the route up
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return None
