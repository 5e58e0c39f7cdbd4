"""Forwards Ethernet frames between interfaces, each a fixed time late: a long link, in user space.

    delay.py SECONDS INTERFACE INTERFACE...

It says "ready" once it forwards, and ends with its standard input. Frames keep the kernel's offload header
(PACKET_VNET_HDR), so that large segments cross whole and unfinished checksums stay unfinished.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import socket
import sys
import time
from typing import TextIO

_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_SO_RCVBUFFORCE = 33
_EVERY_PROTOCOL = 3
_LARGEST_FRAME = 1 << 17
_OFFLOAD_HEADER = 10  # bytes, before the frame
_BROADCAST_BIT = 1  # of the first byte of a destination


def _open(interface: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL))
    port.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 32 << 20)
    port.bind((interface, _EVERY_PROTOCOL))
    port.setblocking(False)
    return port


class Switch:
    """Learns which port each address is behind. Threads: one. Owns: the frames on their way."""

    def __init__(self, ports: list[socket.socket], delay_s: float) -> None:
        self.ports, self.delay_s = ports, delay_s
        self._port_of: dict[bytes, socket.socket] = {}
        self._late: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()

    def take(self, port: socket.socket) -> None:
        """Takes in what has come to `port`."""
        # A link that is down, or has nothing more.
        with contextlib.suppress(OSError):
            while True:
                frame = port.recv(_LARGEST_FRAME)
                due = time.monotonic() + self.delay_s
                self._port_of[frame[_OFFLOAD_HEADER + 6 : _OFFLOAD_HEADER + 12]] = port
                self._late.append((due, port, frame))

    def give(self) -> float | None:
        """Gives out what is due. Returns the seconds until the next is; None: nothing is on its way."""
        while self._late:
            due, origin, frame = self._late[0]
            wait = due - time.monotonic()
            if wait > 0:
                return wait
            self._late.popleft()
            destination = frame[_OFFLOAD_HEADER : _OFFLOAD_HEADER + 6]
            known = None if destination[0] & _BROADCAST_BIT else self._port_of.get(destination)
            for port in [known] if known is not None else [port for port in self.ports if port is not origin]:
                # What a full or cut link does not take is lost, as on any link.
                with contextlib.suppress(OSError):
                    port.send(frame)
        return None


def main() -> None:
    """Forwards until standard input ends."""
    switch = Switch([_open(interface) for interface in sys.argv[2:]], float(sys.argv[1]))
    print("ready", flush=True)
    wait: float | None = None
    while True:
        sources: list[socket.socket | TextIO] = [sys.stdin, *switch.ports]
        readable, _, _ = select.select(sources, [], [], wait)
        if sys.stdin in readable:
            os._exit(0)
        for port in switch.ports:
            if port in readable:
                switch.take(port)
        wait = switch.give()


if __name__ == "__main__":
    main()
