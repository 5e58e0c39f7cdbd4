"""Pelton's wires between two hosts (network namespaces) against a raw TCP stream: 64 MiB, and ping-pongs."""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from raw_tcp import SIZE, time_raw  # noqa: E402

from tests.network.hosts import Hosts, NotPermitted  # noqa: E402
from tests.network.pair import start  # noqa: E402


def time_wire(hosts: Hosts, turns: int, wire: str) -> dict[str, float]:
    """Median seconds by what and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(hosts, pathlib.Path(folder), turns, patience=120, wire=wire)
        (printed, _), _ = [rank.communicate(timeout=300) for rank in ranks]
    rows = [line.split() for line in printed.splitlines()]
    return {f"{what} {size}": float(seconds) for what, size, seconds in rows}


def main() -> None:
    """Prints a table, a row per rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--rates", nargs="+", default=["none", "10gbit", "1gbit"])
    options = parser.parse_args()
    print("| rate | raw MB/s | wire | MB/s | share | 8 B there and back us | 4 KiB us |\n" + "| --- " * 7 + "|")
    for rate in options.rates:
        try:
            with Hosts(2, None if rate == "none" else rate) as hosts:
                raw = time_raw(hosts, options.turns)
                timed = {wire: time_wire(hosts, options.turns, wire) for wire in ("tcp", "ucx")}
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
