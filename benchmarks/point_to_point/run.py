"""Pelton's wires between two hosts (network namespaces) against a raw TCP stream: 64 MiB, and ping-pongs."""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from raw_tcp import SIZE, time_raw  # noqa: E402

from tests.network.hosts import Hosts, NotPermitted  # noqa: E402


def time_wire(hosts: Hosts, pair: str, turns: int, wire: str) -> dict[str, float]:
    """Median seconds by what and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [[pair, str(rank), hosts.interface, folder, str(turns), "120", wire] for rank in (0, 1)]
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
    parser.add_argument("--pair", default=str(ROOT / "bazel-bin/benchmarks/point_to_point/wire_pair"))
    options = parser.parse_args()
    print("| rate | raw MB/s | wire | MB/s | share | 8 B there and back us | 4 KiB us |\n" + "| --- " * 7 + "|")
    for rate in options.rates:
        try:
            with Hosts(2, None if rate == "none" else rate) as hosts:
                raw = time_raw(hosts, options.turns)
                timed = {wire: time_wire(hosts, options.pair, options.turns, wire) for wire in ("tcp", "ucx")}
        except NotPermitted as reason:
            print(f"skipped: namespaces are not permitted here: {reason}")
            return
        for wire, seconds in timed.items():
            stream = seconds[f"stream {SIZE}"]
            speeds = f"{SIZE / raw / 1e6:.0f} | {wire} | {SIZE / stream / 1e6:.0f} | {raw / stream:.0%}"
            short = " | ".join(f"{seconds[f'pingpong {size}'] * 1e6:.0f}" for size in (8, 4096))
            print(f"| {rate} | {speeds} | {short} |", flush=True)


if __name__ == "__main__":
    main()
