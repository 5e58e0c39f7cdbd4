"""Times every operation of Pelton and gloo in turns; prints the ratios and draws them.

tools/bench collectives [--ranks N...] [--sizes BYTES...] [--turns N] [--region] [--picture FILE]
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys

from report import Figures, draw, print_table

HERE = pathlib.Path(__file__).resolve().parent
SIZES = [4 << 10, 1 << 20, 16 << 20]


def measure(ranks: int, arguments: list[str]) -> Figures:
    """Runs the ranks on this host; seconds by (operation, bytes, side)."""
    command = [sys.executable, "-m", "pelton_run", "-np", str(ranks), str(HERE / "rank.py"), *arguments]
    figures: Figures = {}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=None)
    assert process.stdout is not None
    for line in process.stdout:
        words = line.removeprefix("[rank 0] ").split()
        if len(words) == 4 and words[1].isdigit():
            figures[words[0], int(words[1]), words[2]] = float(words[3])
            print(f"\r{len(figures) // 2} operations timed", end="", file=sys.stderr, flush=True)
        else:
            print(line, end="", file=sys.stderr)
    print(file=sys.stderr)
    if process.wait() != 0:
        raise SystemExit(f"the ranks ended with status {process.returncode}")
    return figures


def main() -> None:
    """Runs the whole comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--operations", nargs="*", default=[])
    parser.add_argument("--region", action="store_true", help="tensors in Pelton's memory")
    parser.add_argument("--picture", type=pathlib.Path, default=pathlib.Path("out/collectives.png"))
    options = parser.parse_args()
    arguments = ["--sizes", *map(str, options.sizes), "--turns", str(options.turns)]
    if options.operations:
        arguments += ["--operations", *options.operations]
    if options.region:
        arguments.append("--region")
    for ranks in options.ranks:
        figures = measure(ranks, arguments)
        print_table(f"{ranks} ranks on one host", figures)
        picture = options.picture.with_stem(f"{options.picture.stem}_{ranks}")
        draw(f"{ranks} ranks on one host", figures, picture)
        print(f"picture: {picture}")


if __name__ == "__main__":
    main()
