"""Ports that stay free until the process they are meant for takes them."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def reserve_port(address: str = LOOPBACK) -> socket.socket:
    """Binds a free port without listening on it.

    While the socket is open the kernel gives the port to nobody who asks for any port; a server that sets
    SO_REUSEADDR (all of gRPC, libuv and PyTorch's store do) can still bind and listen on it.

    Args:
      address: a numeric address of this machine.

    Returns:
      The bound socket; `getsockname()[1]` is the port.

    Raises:
      OSError: the address is not one of this machine's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((address, 0))
    except OSError:
        reserved.close()
        raise
    return reserved


def port_of(reserved: socket.socket) -> int:
    """The port number that a socket is bound to."""
    return int(reserved.getsockname()[1])
