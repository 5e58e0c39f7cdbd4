"""Measures which recipe is the fastest for each collective and size between hosts, and writes the table.

    tune.py --out FILE [--kinds NAME...] [--sizes BYTES...] [--turns N]

Every host runs it as one rank, under torchrun or `pelton run`; `tools/bench --tune` does so on namespaces with links of
a given rate. FILE is what PELTON_SCHEDULES takes. Rank 0 prints a JSON line per kind while it measures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

import pelton.torch_api as bagua
import torch
from pelton import _C
from pelton._training import _session
from rows import Seconds, table_of
from timing import call_of, time_call

KINDS = ("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather", "gather", "scatter", "alltoall")
SIZES = [1 << power for power in range(10, 25, 2)]


def _measure(kind: str, recipe: str, sizes: list[int]) -> list[float]:
    """Seconds by size, in a job of its own whose table has nothing but `recipe`."""
    with tempfile.NamedTemporaryFile("w", suffix=".schedules") as table:
        table.write(f"{kind} 0 0 {recipe}\n")
        table.flush()
        os.environ["PELTON_SCHEDULES"] = table.name
        bagua.init_process_group()
    try:
        if len(_session.current().backend.host_ranks()) > 1:
            raise SystemExit("tune.py: run one rank on each host: recipes run between hosts")
        return [time_call(call_of(kind, size)) for size in sizes]
    finally:
        bagua.destroy_process_group()


def _tune(kind: str, world: int, sizes: list[int], turns: int) -> Seconds:
    """Median seconds by recipe and size; the recipes take turns."""
    samples: dict[str, list[list[float]]] = {recipe: [] for recipe in _C.schedules(kind, world)}
    for _ in range(turns):
        for recipe, taken in samples.items():
            taken.append(_measure(kind, recipe, sizes))
    return {name: [statistics.median(column) for column in zip(*taken)] for name, taken in samples.items()}


def main() -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes, ascending")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rows = ["# collective, largest world size, largest bytes (0: any), recipe"]
    for kind in options.kinds:
        seconds = _tune(kind, world, options.sizes, options.turns)
        rows += table_of(kind, world, options.sizes, seconds)
        if rank == 0:
            print(json.dumps({"kind": kind, "seconds": seconds}), flush=True)
    if rank == 0:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
