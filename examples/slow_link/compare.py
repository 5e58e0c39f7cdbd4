"""Two hosts, joined by a link of 1 Gb/s: what a step costs when every gradient crosses it, and when not.

    sudo python examples/slow_link/compare.py [--rate 1gbit] [--epochs 6] [--ways NAME...]

The hosts are network namespaces of this machine, and `tc` holds their link to the rate; to make them takes root. Where
they are not permitted it says why and ends with status 3. The training loop is train.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "benchmarks" / "links"))
from world import lines_of_rank_0  # noqa: E402

from tests.network.hosts import BURST_BYTES, Hosts, NotPermitted  # noqa: E402

NOT_PERMITTED = 3


def figures_of(rate: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """What rank 0 tells of each way; one rank on each host."""
    with Hosts(2, rate=rate) as hosts:
        command = [sys.executable, str(FOLDER / "train.py"), *words]
        return [json.loads(line) for line in lines_of_rank_0(hosts, [0, 1], command) if line.startswith("{")]


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """In Markdown; the first row is what the others are held against."""
    lines = ["| way | ms a step | times as fast | MB sent a step | accuracy |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        speed = rows[0]["ms"] / row["ms"]
        megabytes = row["sent_bytes"] / 1e6
        lines.append(f"| {row['title']} | {row['ms']:.1f} | {speed:.1f} | {megabytes:.3f} | {row['accuracy']:.3f} |")
    return "\n".join(lines)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="1gbit", choices=list(BURST_BYTES))
    options, words = parser.parse_known_args()
    try:
        rows = figures_of(options.rate, words)
    except (NotPermitted, FileNotFoundError) as reason:
        print(f"network namespaces are not permitted here: {reason}", file=sys.stderr)
        return NOT_PERMITTED
    print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
