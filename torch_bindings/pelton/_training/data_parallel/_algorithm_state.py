"""What an algorithm remembers on this rank, as a dictionary for checkpoints and for wrapping a model again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pelton import _C
from pelton._training._parameters import NamedTensors, select
from pelton._training.algorithms.base import AlgorithmImpl, RegisteredAlgorithm
from pelton._training.data_parallel._user_algorithm import runtime_algorithm
from pelton.errors import InvalidArgument, PeltonError

# 1: residuals of 16-bit tensors in 16 bits, stages by their place in the pipeline. 2: results of an open round in the
# order of logical elements, where 3 has that of memory, as everything else. 3: one rank, or one host, keeps nothing for
# a larger group; of one rank it is read as the state of another number of ranks, which may lack that.
_FORMAT = 4
_WITHOUT_HELD_BACK = 3
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
    whole: Sequence[_C.State] = ()  # in place of it: what all ranks of a group of another size had, by rank

    def fits(self, algorithm: RegisteredAlgorithm, ranks: Sequence[int]) -> bool:
        """Whether an algorithm on a group can go on from it."""
        return self.algorithm == algorithm and list(self.ranks) == list(ranks)

    def common(self) -> list[Any]:
        """What must be the same on all ranks, for comparison. Of ranks that run apart each has counts of its own."""
        rounds, order, _ = self.runtime
        if self.whole:
            return [self.steps, [[rounds, order] for rounds, order, _ in self.whole]]
        return [order] if self.algorithm.runs_apart else [self.steps, rounds, order]

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


def from_dict(state: dict[str, Any] | Sequence[dict[str, Any]], ranks: Sequence[int], rank: int) -> AlgorithmState:
    """What `AlgorithmState.to_dict` told.

    Args:
      state: the dictionary; or those of all ranks of a group of any size, in rank order.
      ranks: of the group it is to be loaded on.
      rank: this one.

    Raises:
      InvalidArgument: it is malformed, of another group or of another rank; the text says which.
    """
    if isinstance(state, Sequence):
        return _from_all(state, ranks, rank)
    found = _parsed(state)
    if (len(found.ranks), found.rank) != (len(ranks), rank):
        size = len(found.ranks)
        way = "" if size == len(ranks) else f". To go on from it pass the list of all {size} ranks' states, by rank"
        raise InvalidArgument(
            f"state: it is that of rank {found.rank} of {size}, this is rank {rank} of {len(ranks)}{way}"
        )
    if state["format"] == _WITHOUT_HELD_BACK and len(ranks) == 1:
        return replace(found, runtime=NOTHING, whole=[found.runtime])
    return found


def _from_all(states: Sequence[dict[str, Any]], ranks: Sequence[int], rank: int) -> AlgorithmState:
    if len(states) == len(ranks):
        return from_dict(states[rank], ranks, rank)
    if not states:
        raise InvalidArgument("state: an empty list; pass the states of all ranks that saved, in rank order")
    all_states = [_parsed(state) for state in states]
    first = all_states[0]
    for number, found in enumerate(all_states):
        if (len(found.ranks), found.rank) != (len(states), number):
            raise InvalidArgument(
                f"state: number {number} of the {len(states)} is that of rank {found.rank} of {len(found.ranks)}; pass "
                "the states of all ranks of one group, in rank order"
            )
        if (found.algorithm, found.runtime[1]) != (first.algorithm, first.runtime[1]):
            raise InvalidArgument(
                f"state: rank {number}'s is of another algorithm or another plan than rank 0's; pass the states of one "
                "checkpoint"
            )
    return replace(
        first,
        ranks=ranks,
        rank=rank,
        steps=max(found.steps for found in all_states),  # they are the same, unless the ranks ran apart
        runtime=NOTHING,
        whole=[found.runtime for found in all_states],
    )


def _parsed(state: dict[str, Any]) -> AlgorithmState:
    try:
        if state["format"] not in (_WITHOUT_HELD_BACK, _FORMAT):
            raise InvalidArgument(
                f"state: its format is {state['format']!r}; this version reads 3 and 4. Resume from the weights and "
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
    return found


class OwnAlgorithm:
    """The algorithm that the user has wrapped a model with, while `pelton.autotune` may have another one in its place.
    Checkpoints have its state alone, so that the script that wraps with it can load them.

    Threads: the trainer's. Owns: what it remembered when another one last took its place.
    """

    def __init__(self, algorithm: AlgorithmImpl) -> None:
        self.algorithm = algorithm
        self._kept: AlgorithmState | None = None
        self._tensors: list[Any] = []  # of the registration that it was kept of

    def is_same_as(self, algorithm: AlgorithmImpl) -> bool:
        """Whether another object stands for the same algorithm with the same options."""
        if algorithm is self.algorithm:
            return True
        is_of_class = type(algorithm) is type(self.algorithm)
        return is_of_class and runtime_algorithm(algorithm) == runtime_algorithm(self.algorithm)

    def keep(self, state: AlgorithmState, trainable: NamedTensors) -> None:
        """Another algorithm is about to take its place."""
        self._kept, self._tensors = state, _described(trainable)

    def state(self, inner: Any) -> AlgorithmState:
        """Its state, whichever algorithm is in force. After another one that is what it remembered when its last turn
        ended; where the model's parameters have changed since, it begins anew.

        Args:
          inner: the object behind the wrapped model.

        Raises:
          FailedPrecondition: a round is under way, or the process group has ended.
        """
        in_force: AlgorithmState = inner._state()
        if self.is_same_as(inner.bagua_algorithm):
            return in_force
        if self._kept is not None and self._tensors == _described(inner._selected.trainable):
            return self._kept
        registered = runtime_algorithm(self.algorithm)
        assert registered is not None, "what is written in Python has no other in its place"
        implementation = self.algorithm.state_dict()
        return replace(in_force, algorithm=registered, implementation=implementation, steps=0, runtime=NOTHING)


def _described(trainable: NamedTensors) -> list[Any]:
    return [(name, tensor.dtype, tensor.shape) for name, tensor in trainable]


def state_left_by(predecessor: Any, successor: Any) -> tuple[AlgorithmState | None, Exception | None]:
    """What a wrapping of a model can go on from of an earlier one.

    Args:
      predecessor: the object behind the earlier wrapping.
      successor: the one behind the wrapping that begins.

    Returns:
      The state, None if there is none, as after a round that failed, of which the trainer has been told; and what
      else went wrong.
    """
    try:
        return _state_left_by(predecessor, successor), None
    except PeltonError:
        return None, None
    except Exception as error:  # whatever it is, the other ranks must not wait for this one
        return None, error


def _state_left_by(predecessor: Any, successor: Any) -> AlgorithmState | None:
    if predecessor._live_rounds().may_differ:
        predecessor.finish_round()
    algorithm = successor.bagua_algorithm
    if predecessor._first_algorithm != successor._first_algorithm:
        return None
    if type(predecessor._own.algorithm) is not type(algorithm):
        return None
    state: AlgorithmState = predecessor._own.state(predecessor)
    algorithm.load_state_dict(state.implementation)
    is_same = _described(select(successor.module).trainable) == _described(predecessor._selected.trainable)
    registered = runtime_algorithm(algorithm)
    fits = registered is not None and state.fits(registered, successor.process_group.ranks)
    return state if is_same and fits else None


def adopt(algorithm: AlgorithmImpl, state: AlgorithmState) -> None:
    """Brings an algorithm's Python class to where a state was.

    Raises:
      InvalidArgument: the state is of another class, algorithm or options.
    """
    try:
        algorithm.load_state_dict(state.implementation)
    except (KeyError, TypeError, ValueError) as error:
        raise _other(state, f"{type(algorithm).__name__}, which cannot read it ({error!r})") from None
    registered = runtime_algorithm(algorithm)
    if registered != state.algorithm:
        raise _other(state, f"{registered.name} {registered.options}" if registered else "written in Python")


def _other(state: AlgorithmState, this: str) -> InvalidArgument:
    return InvalidArgument(
        f"state: it is that of {state.algorithm.name} {state.algorithm.options}, this is {this}; load_checkpoint takes "
        "algorithm_state=False, which begins the algorithm anew"
    )


def _tensor(entry: dict[str, Any]) -> tuple[str, str, int, torch.Tensor]:
    return str(entry["key"]), str(entry["tensor"]), int(entry["begin"]), entry["values"].contiguous()
