"""What a plain TCP stream gets between two hosts: 64 MiB, until one byte comes back.

raw_tcp.py receive|send ADDRESS TURNS      one end, which time_raw starts
"""

from __future__ import annotations

import pathlib
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.network.hosts import Hosts  # noqa: E402

PORT, SIZE = 7777, 64 << 20


def receive(address: str, turns: int) -> None:
    """Answers each 64 MiB with one byte."""
    buffer = bytearray(4 << 20)
    with socket.create_server((address, PORT)) as server:
        print("ready", flush=True)
        peer, _ = server.accept()
        for _ in range(turns + 1):
            left = SIZE
            while left > 0:
                left -= peer.recv_into(buffer, min(left, len(buffer)))
            peer.sendall(b"x")


def send(address: str, turns: int) -> None:
    """Prints the median seconds of a 64 MiB stream until its answer."""
    payload, seconds = bytes(SIZE), []
    with socket.create_connection((address, PORT)) as peer:
        for _ in range(turns + 1):
            begin = time.perf_counter()
            peer.sendall(payload)
            peer.recv(1)
            seconds.append(time.perf_counter() - begin)
    print(statistics.median(seconds[1:]))


def time_raw(hosts: Hosts, turns: int) -> float:
    """Median seconds of the stream from host 0 to host 1."""
    me = [sys.executable, __file__]
    receiver = hosts.popen(1, [*me, "receive", hosts.address(1), str(turns)], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    receiver.stdout.readline()
    sender = hosts.popen(0, [*me, "send", hosts.address(1), str(turns)], stdout=subprocess.PIPE)
    printed, _ = sender.communicate(timeout=300)
    receiver.wait(timeout=10)
    return float(printed)


if __name__ == "__main__":
    {"receive": receive, "send": send}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
