"""From measured times to the rows of a table of recipes."""

from __future__ import annotations

import math

Seconds = dict[str, list[float]]  # by recipe, then by size

# Kinds whose count, and so the table's bytes, is that of one rank's part.
OF_PARTS = frozenset({"reduce_scatter", "allgather", "gather", "scatter", "alltoall"})
# A recipe that is not faster by this much does not displace the one of the size below: noise would.
MARGIN = 0.05


def choose(seconds: Seconds) -> list[str]:
    """The recipe to use, by size."""
    chosen: list[str] = []
    for size in range(len(next(iter(seconds.values())))):
        best = min(seconds, key=lambda name: seconds[name][size])
        before = chosen[-1] if chosen else best
        is_faster = seconds[best][size] < seconds[before][size] * (1 - MARGIN)
        chosen.append(best if is_faster else before)
    return chosen


def table_of(kind: str, world: int, sizes: list[int], seconds: Seconds) -> list[str]:
    """Rows for `kind`: between two measured sizes with different recipes the border is their geometric mean.

    Args:
      kind: the collective.
      world: number of ranks.
      sizes: bytes of the whole tensor, ascending.
      seconds: as measured.
    """
    chosen = choose(seconds)
    rows = []
    for place, recipe in enumerate(chosen):
        is_last = place + 1 == len(chosen)
        if not is_last and chosen[place + 1] == recipe:
            continue
        border = 0 if is_last else math.isqrt(sizes[place] * sizes[place + 1])
        rows.append(f"{kind} {world} {border // (world if kind in OF_PARTS else 1)} {recipe}")
    return rows
