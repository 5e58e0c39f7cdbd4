"""Times a put between two hosts, network namespaces with a link of a given rate, beside a raw stream over that link.

While a put is timed the owner computes and calls nothing of Pelton. Streams and puts are in turns, and each is over
when the receiver has said so.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import socket
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PORT = 29778
DONE = b"."
PIECE_BYTES = 1 << 20
WARM_UP = 3


def _line(rank: int) -> socket.socket:
    """A connection between the two, which is none of Pelton's."""
    if rank == 1:
        with socket.create_server(("0.0.0.0", PORT)) as server:
            return server.accept()[0]
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((os.environ["OWNER_ADDRESS"], PORT), timeout=30)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _receive(line: socket.socket, buffer: memoryview) -> None:
    got = 0
    while got < len(buffer):
        more = line.recv_into(buffer[got:], min(PIECE_BYTES, len(buffer) - got))
        if more == 0:
            raise ConnectionError("the other rank has gone")
        got += more
    line.sendall(DONE)


def _compute_until_told(line: socket.socket) -> None:
    """What a trainer does."""
    import torch

    weights = torch.ones(256, 256) / 256
    line.setblocking(False)
    while True:
        weights = weights @ weights
        try:
            assert line.recv(1) == DONE
            break
        except BlockingIOError:
            pass
    line.setblocking(True)


def _owner(line: socket.socket, buffer: memoryview, turns: int) -> None:
    for _ in range(turns):
        _receive(line, buffer)
        _compute_until_told(line)


def _writer(line: socket.socket, size: int, turns: int) -> None:
    import pelton.bluefog.torch as bf
    import torch

    tensor = torch.ones(size // 4)
    payload = memoryview(tensor.numpy()).cast("B")
    rows = []
    for _ in range(WARM_UP):  # the inlet's memory is provided when it is first used
        bf.win_put(tensor, "w")
    for _ in range(turns):
        began = time.perf_counter()
        line.sendall(payload)
        assert line.recv(1) == DONE
        streamed = time.perf_counter()
        bf.win_put(tensor, "w")
        put = time.perf_counter()
        line.sendall(DONE)
        rows.append((streamed - began, put - streamed))
    figures = [of(row[i] for row in rows) for of in (statistics.median, min) for i in (0, 1)]
    print(*figures, flush=True)


def rank_main(size: int, turns: int) -> None:
    """One rank: 0 writes, 1 owns."""
    import pelton.bluefog.torch as bf
    import torch

    rank = int(os.environ["RANK"])
    bf.init(bf.FullyConnectedGraph)
    bf.win_create(torch.zeros(size // 4), "w", zero_init=True)
    bf.barrier()
    with _line(rank) as line:
        if rank == 0:
            _writer(line, size, turns)
        else:
            _owner(line, memoryview(bytearray(size)), turns)
    bf.barrier()
    bf.win_free()


def measure(rate: str, wire: str, size: int, turns: int) -> list[float]:
    """Seconds of the raw stream and of the put: medians, then the least."""
    sys.path.insert(0, str(HERE.parents[1]))
    from benchmarks.links.world import lines_of_rank_0
    from tests.network.hosts import Hosts

    script = str(HERE / "between_hosts.py")
    command = [sys.executable, script, "--rank-main", "--size", str(size), "--turns", str(turns)]
    with Hosts(2, rate=rate) as hosts:
        # Namespaces of one machine share its memory; the labels say that these do not.
        lines = lines_of_rank_0(
            hosts,
            [0, 1],
            command,
            lambda rank: {
                "PELTON_HOST_LABEL": f"host-{rank}",
                "PELTON_WIRE": wire,
                "OWNER_ADDRESS": hosts.address(1),
            },
        )
        return [float(word) for word in list(lines)[-1].split()]


def main() -> None:
    """Prints what was measured. On a busy machine the least figures tell most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc writes it")
    parser.add_argument("--wire", default="tcp")
    parser.add_argument("--size", type=int, default=64 << 20, help="bytes")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rank-main", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_main:
        rank_main(options.size, options.turns)
        return
    figures = measure(options.rate, options.wire, options.size, options.turns)
    print(f"{options.rate}, {options.wire}, {options.size} bytes, {options.turns} turns")
    for name, stream, put in (("median", *figures[:2]), ("least", *figures[2:])):
        print(f"{name}: raw stream {stream * 1e3:.1f} ms, put {put * 1e3:.1f} ms, put over stream {put / stream:.3f}")


if __name__ == "__main__":
    main()
