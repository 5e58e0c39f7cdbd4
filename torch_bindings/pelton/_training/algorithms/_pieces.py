"""Tensors of a model, taken in pieces that stay in a processor's cache from one operation to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

# Half a MiB of float32: with three more tensors beside it, what the second-level cache and a share of the third hold.
# Fewer elements cost more in calls than they save; whole large tensors make every temporary go through memory.
PIECE_ELEMENTS = 1 << 17

Columns = tuple[list[torch.Tensor], ...]


def pieces_of(columns: Sequence[Sequence[torch.Tensor]]) -> Iterator[Columns]:
    """Lists for elementwise `torch._foreach_*` operations, which together are all of the tensors.

    Args:
      columns: the tensors of each kind, by parameter. Row i of all of them has one shape.

    Shape: a piece on the CPU has at most PIECE_ELEMENTS elements a column, or is part of a single row: slices of a
      large tensor by its first dimension, which lie in its memory whatever its strides. Elsewhere nothing is cut.
    """
    gathered: Columns = tuple([] for _ in columns)
    count = 0
    for row in zip(*columns, strict=True):
        elements = row[0].numel() if row[0].is_cpu else 0
        if elements > PIECE_ELEMENTS:
            rows = max(1, PIECE_ELEMENTS * len(row[0]) // elements)
            yield from (tuple([part] for part in parts) for parts in zip(*(tensor.split(rows) for tensor in row)))
            continue
        if count + elements > PIECE_ELEMENTS:
            yield gathered
            gathered, count = tuple([] for _ in columns), 0
        for column, tensor in zip(gathered, row):
            column.append(tensor)
        count += elements
    if gathered[0]:
        yield gathered


def scale(tensors: list[torch.Tensor], factor: float) -> None:
    """Multiplies all of them in place, as `mul_` does: `_foreach_mul_` by a number rounds that to a 16-bit dtype."""
    torch._foreach_mul_(tensors, torch.tensor(factor, dtype=torch.float64, device="cpu"))
