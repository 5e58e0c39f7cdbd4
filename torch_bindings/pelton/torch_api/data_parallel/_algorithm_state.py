"""What an algorithm remembers on this rank, as a dictionary for checkpoints and for wrapping a model again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pelton import _C
from pelton.errors import InvalidArgument
from pelton.torch_api.algorithms.base import RegisteredAlgorithm

# 1: residuals of 16-bit tensors in 16 bits, stages by their place in the pipeline.
_FORMAT = 2
NOTHING: _C.State = (0, [], [])


@dataclass(frozen=True)
class AlgorithmState:
    """Threads: a value. Owns: copies of tensors."""

    algorithm: RegisteredAlgorithm
    ranks: Sequence[int]  # of the group
    rank: int
    implementation: dict[str, Any] = field(default_factory=dict)  # what its Python class remembers
    steps: int = 0
    runtime: _C.State = NOTHING  # rounds, order, tensors

    def fits(self, algorithm: RegisteredAlgorithm, ranks: Sequence[int]) -> bool:
        """Whether an algorithm on a group can go on from it."""
        return self.algorithm == algorithm and list(self.ranks) == list(ranks)

    def common(self) -> list[Any]:
        """What must be the same on all ranks, for comparison."""
        rounds, order, _ = self.runtime
        return [self.steps, rounds, order]

    def to_dict(self) -> dict[str, Any]:
        """Plain containers, numbers, texts and tensors: `torch.load(..., weights_only=True)` reads them."""
        rounds, order, tensors = self.runtime
        return {
            "format": _FORMAT,
            "algorithm": self.algorithm.name,
            "options": dict(self.algorithm.options),
            "ranks": list(self.ranks),
            "rank": self.rank,
            "implementation": self.implementation,
            "steps": self.steps,
            "rounds": rounds,
            "order": order,
            "tensors": [
                {"key": key, "tensor": tensor, "begin": begin, "values": values}
                for key, tensor, begin, values in tensors
            ],
        }


def from_dict(state: dict[str, Any], ranks: Sequence[int], rank: int) -> AlgorithmState:
    """What `AlgorithmState.to_dict` told.

    Args:
      state: the dictionary.
      ranks: of the group it is to be loaded on.
      rank: this one.

    Raises:
      InvalidArgument: it is malformed, of another group or of another rank; the text says which.
    """
    try:
        if state["format"] != _FORMAT:
            raise InvalidArgument(
                f"state: its format is {state['format']!r}; this version reads {_FORMAT}. Resume from the weights and "
                "the optimizer's state alone: the algorithm begins anew then, and makes up for it in some steps"
            )
        found = AlgorithmState(
            RegisteredAlgorithm(str(state["algorithm"]), dict(state["options"])),
            [int(member) for member in state["ranks"]],
            int(state["rank"]),
            dict(state["implementation"]),
            int(state["steps"]),
            (int(state["rounds"]), [str(name) for name in state["order"]], [_tensor(t) for t in state["tensors"]]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"state: not what algorithm_state_dict() returns: {error!r}") from None
    if (len(found.ranks), found.rank) != (len(ranks), rank):
        raise InvalidArgument(
            f"state: it is that of rank {found.rank} of {len(found.ranks)}, this is rank {rank} of {len(ranks)}"
        )
    return found


def _tensor(entry: dict[str, Any]) -> tuple[str, str, int, torch.Tensor]:
    return str(entry["key"]), str(entry["tensor"]), int(entry["begin"]), entry["values"].contiguous()
