"""One fused step: neighbours in memory stand as one parameter while the optimizer's own code runs."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from pelton._training.algorithms._pieces import PIECE_ELEMENTS
from pelton.torch_api.contrib.fuse._members import (
    GRADIENTS,
    WEIGHTS,
    Member,
    is_like,
    is_position_blind,
    member_of,
    read_numbers,
    runs_of,
    state_kind,
)
from pelton.torch_api.contrib.fuse._shelf import Shelf, may_move
from pelton.torch_api.contrib.fuse._wrapped import WrappedParameters

_Kind = tuple[int, torch.dtype, torch.device, int]  # group, and the number of the flat bucket, or none
_NONE = -1


@dataclass
class _Run:
    """Neighbours in memory as one parameter, or as few. Threads: the trainer's. Owns: views of their memory."""

    members: list[Member]
    offsets: list[int]  # of the members from the first one's begin on, in elements
    size: int
    pieces: list[torch.Tensor]  # with their gradients; together the run. On a CPU they stay in its cache
    states: dict[str, list[torch.Tensor]]  # by key, cut alike


_Last = tuple[list[Any], list[list[_Run]]]  # where all lay after the last step, and its runs


class Fusion:
    """How an optimizer's parameters lie in memory, and its steps on them.

    Threads: the trainer's. Owns: the flat memory of what it has moved; the optimizer is the caller's.
    """

    def __init__(self, does_flatten: bool, keeps_flat: bool) -> None:
        """Args:
        does_flatten: tensors may be moved.
        keeps_flat: they are looked at before each step, and moved again where that is needed.
        """
        self._does_flatten = does_flatten
        self._keeps_flat = keeps_flat
        self._shelves: dict[_Kind, Shelf] = {}
        self._last: _Last | None = None

    def flatten(self, optimizer: Optimizer, wrapped: WrappedParameters) -> None:
        """Lays out weights, gradients and states of each group one after the other, or as the gradients lie in buckets.

        Args:
          optimizer: whose.
          wrapped: the parameters of wrapped models.
        """
        if not self._does_flatten:
            return
        before, self._shelves = self._shelves, {}
        for number, group in enumerate(optimizer.param_groups):
            movable = self._movable(optimizer, group, before)
            by_kind: dict[_Kind, list[torch.Tensor]] = defaultdict(list)
            for parameter in movable:
                if id(parameter) not in wrapped.flat_ones:
                    by_kind[number, parameter.dtype, parameter.device, _NONE].append(parameter)
            for kind, members in by_kind.items():
                self._put(kind, members, None, before)
            ids = {id(parameter) for parameter in movable}
            for place, bucket in enumerate(wrapped.buckets):
                found = [(p, begin) for p, begin in zip(bucket.members, bucket.begins) if id(p) in ids]
                kind = (number, bucket.gradients.dtype, bucket.gradients.device, place)
                self._put(kind, [p for p, _ in found], [begin for _, begin in found], before, bucket.gradients)
        for shelf in self._shelves.values():
            _lay_out(shelf, optimizer.state, wrapped.single_ones)

    def _movable(self, optimizer: Optimizer, group: dict[str, Any], shelves: dict[_Kind, Shelf]) -> list[torch.Tensor]:
        """The parameters of a group that may be moved, or were."""
        uses = Counter(p.data_ptr() for each in optimizer.param_groups for p in each["params"])
        return [
            p
            for p in group["params"]
            if is_position_blind(p, group)
            and uses[p.data_ptr()] == 1  # by memory: one that moved would leave the other behind
            and (may_move(p) or any(shelf.owns(WEIGHTS, _storage(p)) for shelf in shelves.values()))
        ]

    def _put(
        self,
        kind: _Kind,
        members: list[torch.Tensor],
        offsets: list[int] | None,
        before: dict[_Kind, Shelf],
        gradients: torch.Tensor | None = None,
    ) -> None:
        """Gives parameters a shelf, that of before where it was made for them."""
        if len(members) < 2:
            return
        known = before.get(kind)
        if known is None or not known.holds(members, offsets):
            known = Shelf(members, offsets)
        if any(offset % known.alignment for offset in known.offsets):
            return  # of a bucket without gaps: weights at such addresses may be multiplied with other roundings
        known.gradients = gradients
        self._shelves[kind] = known

    def step(self, optimizer: Optimizer, own_step: Callable[[Optimizer], Any], wrapped: WrappedParameters) -> int:
        """One step of the optimizer.

        Args:
          optimizer: the optimizer.
          own_step: its code.
          wrapped: as for `flatten`.

        Returns:
          The number of groups in which something was fused.
        """
        last, self._last = self._last, None
        places = last[0] if last is not None else None
        flat_ones = wrapped.flat_ones
        runs = self._unchanged(last, optimizer, flat_ones)
        if runs is None:
            places = None
            if self._keeps_flat:
                self.flatten(optimizer, wrapped)
            numbered = enumerate(optimizer.param_groups)
            runs = [self._runs(number, group, optimizer.state, flat_ones) for number, group in numbered]
        own_groups, own_state = optimizer.param_groups, optimizer.state
        groups, state = _stand_ins(own_groups, own_state, runs)
        try:
            optimizer.param_groups, optimizer.state = groups, state
            own_step(optimizer)
        finally:
            optimizer.param_groups, optimizer.state = own_groups, own_state
        if _take_back(own_groups, own_state, groups, state, runs):
            self._last = (places or _places(optimizer, flat_ones), runs)
        return sum(any(len(run.members) > 1 for run in of_group) for of_group in runs)

    def _unchanged(self, last: _Last | None, optimizer: Optimizer, flat_ones: set[int]) -> list[list[_Run]] | None:
        """The runs of the last step, if everything lies where it lay after that, and numbers are equal in each."""
        if last is None or last[0] != _places(optimizer, flat_ones):
            return None
        runs = last[1]
        members = [member for of_group in runs for run in of_group for member in run.members]
        for member in members:
            states = optimizer.state.get(member.parameter, {})
            member.scalars = {key: states[key] for key in states if state_kind(key) not in member.tensors}
        read_numbers(members)
        is_equal = all(
            m.numbers == run.members[0].numbers for of_group in runs for run in of_group for m in run.members
        )
        return runs if is_equal else None

    def _runs(self, number: int, group: dict[str, Any], state: Any, flat_ones: set[int]) -> list[_Run]:
        shelves = [shelf for kind, shelf in self._shelves.items() if kind[0] == number]
        shelf_of = {id(parameter): shelf for shelf in shelves for parameter in shelf.members}
        by_kind: dict[tuple[torch.dtype, torch.device], list[Member | None]] = defaultdict(list)
        in_buckets: dict[int, Member | None] = {}
        for p in group["params"]:
            is_in_bucket, is_free = id(p) in flat_ones, is_position_blind(p, group)
            member = member_of(p, state.get(p), shelf_of.get(id(p)), is_in_bucket) if is_free else None
            by_kind[p.dtype, p.device].append(None if is_in_bucket else member)
            if is_in_bucket:
                in_buckets[id(p)] = member
        rows = [*by_kind.values()]
        rows += [[in_buckets.get(id(p)) for p in shelf.members] for shelf in shelves if shelf.gradients is not None]
        read_numbers([member for members in rows for member in members if member is not None])
        return [_as_one(run) for members in rows for run in runs_of(members)]


def _places(optimizer: Optimizer, flat_ones: set[int]) -> list[Any]:
    """Where everything lies that a step looks at; what is the same after a step and before the next one has stayed."""
    places: list[Any] = [flat_ones]
    for group in optimizer.param_groups:
        places.append(bool(group.get("fused")))
        for p in group["params"]:
            gradient = p.grad
            places += (id(p), p.data_ptr(), p.stride())
            if gradient is not None and gradient.layout == torch.strided:
                places += (gradient.data_ptr(), gradient.stride())
            else:
                places.append(gradient is None)
            for key, value in optimizer.state.get(p, {}).items():
                is_tensor = isinstance(value, torch.Tensor) and value.layout == torch.strided
                places += (key, value.data_ptr() if is_tensor and value.dim() > 0 else None)
    return places


def _lay_out(shelf: Shelf, state: Any, single_ones: set[int]) -> None:
    def put_weights(i: int, home: torch.Tensor) -> None:
        shelf.members[i].data = home

    def put_gradient(i: int, home: torch.Tensor) -> None:
        shelf.members[i].grad = home

    with torch.no_grad():
        shelf.lay_out(WEIGHTS, [member.detach() for member in shelf.members], put_weights)
        if shelf.gradients is None:
            gradients = [_movable_gradient(shelf, p, single_ones) for p in shelf.members]
            shelf.lay_out(GRADIENTS, gradients, put_gradient)
        own = [state.get(member, {}) for member in shelf.members]
        for key in dict.fromkeys(key for states in own for key in states):
            tensors = [_movable_state(states.get(key), member) for states, member in zip(own, shelf.members)]
            shelf.lay_out(state_kind(str(key)), tensors, functools.partial(_put_state, own, key))


def _put_state(states: list[dict[str, Any]], key: str, i: int, home: torch.Tensor) -> None:
    states[i][key] = home


def _movable_gradient(shelf: Shelf, parameter: torch.Tensor, single_ones: set[int]) -> torch.Tensor | None:
    """A gradient that nobody keeps at its place; a part of something larger is another library's bucket."""
    gradient = parameter.grad
    if gradient is None or gradient.layout != torch.strided or gradient.dtype != parameter.dtype:
        return None
    if gradient.requires_grad or gradient.grad_fn is not None:
        return None
    is_free = id(parameter) in single_ones or may_move(gradient) or shelf.owns(GRADIENTS, _storage(gradient))
    return gradient if is_free else None


def _movable_state(value: Any, parameter: torch.Tensor) -> torch.Tensor | None:
    is_tensor = isinstance(value, torch.Tensor) and value.dim() > 0
    return value if is_tensor and is_like(value, parameter, of_any_dtype=True) else None


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _as_one(members: list[Member]) -> _Run:
    begins = [member.places[WEIGHTS][1] for member in members]
    offsets = [begin - begins[0] for begin in begins]
    size = offsets[-1] + members[-1].parameter.numel()
    weights, gradients = (_cut(members[0].tensors[kind], size) for kind in (WEIGHTS, GRADIENTS))
    for piece, gradient in zip(weights, gradients):
        piece.grad = gradient
    states = {
        kind.removeprefix(state_kind("")): _cut(tensor, size)
        for kind, tensor in members[0].tensors.items()
        if kind not in (WEIGHTS, GRADIENTS)
    }
    return _Run(members, offsets, size, weights, states)


def _cut(first: torch.Tensor, size: int) -> list[torch.Tensor]:
    """The memory from a tensor's first element on, in pieces."""
    whole = first.detach().as_strided((size,), (1,), first.storage_offset())
    return list(torch.split(whole, PIECE_ELEMENTS)) if whole.is_cpu else [whole]


def _stand_ins(
    own_groups: list[dict[str, Any]], own_state: Any, runs: Sequence[Sequence[_Run]]
) -> tuple[list[dict[str, Any]], Any]:
    """What the optimizer steps instead: each run as one parameter, all others as they are."""
    state: Any = defaultdict(dict)
    groups = []
    for group, of_group in zip(own_groups, runs):
        run_of = {id(member.parameter): run for run in of_group for member in run.members}
        parameters = []
        for p in group["params"]:
            run = run_of.get(id(p))
            if run is None:
                parameters.append(p)
                if p in own_state:
                    state[p] = own_state[p]
            elif p is run.members[0].parameter:
                parameters.extend(run.pieces)
                state.update(_state_of(run))
        groups.append({**group, "params": parameters})
    return groups, state


def _state_of(run: _Run) -> dict[torch.Tensor, dict[str, Any]]:
    scalars = run.members[0].scalars.items()
    if not run.states and not scalars:
        return {}
    return {
        piece: {
            **{key: parts[i] for key, parts in run.states.items()},
            **{key: _copied(value) for key, value in scalars},
        }
        for i, piece in enumerate(run.pieces)
    }


def _take_back(
    own_groups: list[dict[str, Any]],
    own_state: Any,
    groups: list[dict[str, Any]],
    state: Any,
    runs: Sequence[Sequence[_Run]],
) -> bool:
    """What the step has made of the numbers and states of runs; weights and states that there were changed in place.

    Returns:
      Whether the runs are of use again: no state is new, and no memory is the caller's, who may give it up.
    """
    stays = all(member.shelf is not None for of_group in runs for run in of_group for member in run.members)
    for own, group, of_group in zip(own_groups, groups, runs):
        own.update({key: value for key, value in group.items() if key != "params"})
        pieces = {id(piece) for run in of_group for piece in run.pieces}
        for p in group["params"]:
            if id(p) not in pieces and p in state:
                own_state[p] = state[p]
        for run in of_group:
            for key, value in state.get(run.pieces[0], {}).items():
                if not isinstance(value, torch.Tensor) or value.dim() == 0:
                    for member in run.members:
                        _set_number(own_state[member.parameter], key, value)
                elif not _is_in_place(run, key, value):
                    _give_members(run, own_state, key, [state[piece][key] for piece in run.pieces])
                    stays = False
    return stays


def _is_in_place(run: _Run, key: str, value: torch.Tensor) -> bool:
    """Whether a state of the first piece is what it was, written to."""
    parts = run.states.get(key)
    return parts is not None and _storage(parts[0]) == _storage(value)


def _give_members(run: _Run, own_state: Any, key: str, parts: list[torch.Tensor]) -> None:
    """A state of the parameters' size that the step has made."""
    first, kind = run.members[0], state_kind(key)
    flat = parts[0] if len(parts) == 1 else torch.cat(parts)
    if first.shelf is not None:
        first.shelf.adopt(kind, flat)
    for member, offset in zip(run.members, run.offsets):
        shape = member.parameter.shape
        own_state[member.parameter][key] = flat[offset : offset + shape.numel()].view(shape)


def _set_number(states: dict[str, Any], key: str, value: Any) -> None:
    """Each parameter has a tensor of its own, as a plain step adds to each."""
    mine = states.get(key)
    is_kept = isinstance(mine, torch.Tensor) and isinstance(value, torch.Tensor) and mine.dtype == value.dtype
    if isinstance(mine, torch.Tensor) and is_kept and mine.device == value.device:
        mine.copy_(value)
    else:
        states[key] = _copied(value)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
