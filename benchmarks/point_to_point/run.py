"""UCX between two hosts (network namespaces) against a raw TCP stream: 64 MiB, and ping-pongs."""

from __future__ import annotations

import argparse
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.network.hosts import Hosts, NotPermitted  # noqa: E402

PORT, SIZE = 7777, 64 << 20


def raw_receiver(address: str, turns: int) -> None:
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


def raw_sender(address: str, turns: int) -> None:
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
    """Median seconds of the raw stream."""
    me = [sys.executable, __file__, "--turns", str(turns)]
    receiver = hosts.popen(1, [*me, "--raw-receiver", hosts.address(1)], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    receiver.stdout.readline()
    sender = hosts.popen(0, [*me, "--raw-sender", hosts.address(1)], stdout=subprocess.PIPE)
    printed, _ = sender.communicate(timeout=300)
    receiver.wait(timeout=10)
    return float(printed)


def time_ucx(hosts: Hosts, pair: str, turns: int) -> dict[str, float]:
    """Median seconds by what and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [[pair, str(rank), hosts.interface, folder, str(turns), "120"] for rank in (0, 1)]
        other = hosts.popen(1, command[1])
        first = hosts.popen(0, command[0], stdout=subprocess.PIPE)
        printed, _ = first.communicate(timeout=300)
        other.wait(timeout=30)
    rows = [line.split() for line in printed.splitlines()]
    return {f"{what} {size}": float(seconds) for what, size, seconds in rows}


def main() -> None:
    """Prints a table, a row per rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--rates", nargs="+", default=["none", "10gbit", "1gbit"])
    parser.add_argument("--pair", default=str(ROOT / "bazel-bin/benchmarks/point_to_point/ucx_pair"))
    parser.add_argument("--raw-receiver", default="")
    parser.add_argument("--raw-sender", default="")
    options = parser.parse_args()
    if options.raw_receiver:
        return raw_receiver(options.raw_receiver, options.turns)
    if options.raw_sender:
        return raw_sender(options.raw_sender, options.turns)
    print("| rate | raw MB/s | UCX MB/s | share | 8 B there and back us | 4 KiB us |\n" + "| --- " * 6 + "|")
    for rate in options.rates:
        try:
            with Hosts(2, None if rate == "none" else rate) as hosts:
                raw = time_raw(hosts, options.turns)
                ucx = time_ucx(hosts, options.pair, options.turns)
        except NotPermitted as reason:
            print(f"skipped: namespaces are not permitted here: {reason}")
            return None
        stream = ucx[f"stream {SIZE}"]
        speeds = f"{SIZE / raw / 1e6:.0f} | {SIZE / stream / 1e6:.0f} | {raw / stream:.0%}"
        print(f"| {rate} | {speeds} | {ucx['pingpong 8'] * 1e6:.0f} | {ucx['pingpong 4096'] * 1e6:.0f} |", flush=True)
    return None


if __name__ == "__main__":
    main()
