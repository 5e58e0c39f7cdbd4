"""Brings ranks that run apart together, and takes what an algorithm remembers along to another registration."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pelton import _C
from pelton._training import _before_writes
from pelton._training._arguments import ReduceOp
from pelton._training._packed import allreduce_coalesced_inplace, broadcast_packed
from pelton._training._parameters import NamedTensors
from pelton._training._state_broadcast import agreeing, everyone, of_all_ranks
from pelton._training.data_parallel._algorithm_state import AlgorithmState
from pelton._training.data_parallel._rounds import Rounds
from pelton._training.data_parallel._user_algorithm import runtime_algorithm
from pelton._warn import warn
from pelton.errors import InvalidArgument, PeltonError


def bring_together(rounds: Rounds, communicator: _C.Communicator, trainable: NamedTensors) -> None:
    """Gives all ranks the same weights: the mean, or what the optimizer makes of an exchange. Collective.

    Results of a delayed round are merged first. What has changed since its registration cannot take them: they are
    dropped then.

    Raises:
      PeltonError: what the communication failed with.
    """
    _before_writes.settle()
    has_changed = bool(rounds.changes())
    if not has_changed:
        rounds.finish()
    if rounds.may_differ and not rounds.come_together(has_changed):
        average(communicator, [tensor for _, tensor in trainable])


def average_buffers(communicator: _C.Communicator, module: nn.Module, ignored: Sequence[str]) -> None:
    """Means of statistics, and rank 0's of counts. Collective."""
    buffers = [buffer for name, buffer in module.named_buffers() if name not in ignored]
    average(communicator, [buffer for buffer in buffers if buffer.is_floating_point()])
    broadcast_packed(communicator, [buffer for buffer in buffers if not buffer.is_floating_point()], 0)


def warn_of_meeting(model: str, changes: Sequence[str]) -> None:
    """Says that a change of the model cost the ranks a meeting outside the algorithm's schedule."""
    warn(
        f"{model} is registered anew ({'; '.join(changes) or 'the algorithm changes'}): the ranks, whose weights the "
        "algorithm lets differ, have come to their mean"
    )


def average(communicator: _C.Communicator, tensors: Sequence[torch.Tensor], operation: ReduceOp = ReduceOp.AVG) -> None:
    """Every tensor becomes the mean of all ranks', or what else the operation makes of them. Collective."""
    if tensors:
        _before_writes.settle()
        with torch.no_grad():
            allreduce_coalesced_inplace([tensor.detach() for tensor in tensors], operation, communicator)


def share_local_gradients(inner: Any, rounds: Rounds) -> None:
    """Gradients of backward passes in `no_sync` wait for the next one outside of it, but parameters that the model no
    longer has take part in none: their gradients are communicated now. Collective.

    Args:
      inner: the object behind the wrapped model.
      rounds: its, of before the change.

    Raises:
      FailedPrecondition: one of them was added to a sum of the ranks.
      PeltonError: what the communication failed with.
    """
    communicator = inner.process_group.get_global_communicator()
    staying = set(map(id, inner.module.parameters()))
    parameters = [tensor for _, tensor in inner._selected.trainable]
    local = set(rounds.local_gradients())
    leaving = [name in local and id(tensor) not in staying for name, tensor in inner._selected.trainable]
    if everyone(communicator, not any(leaving)):
        return
    with agreeing(communicator):
        rounds.check_local_gradients([name for (name, _), leaves in zip(inner._selected.trainable, leaving) if leaves])
    leaves_anywhere = of_all_ranks(communicator, leaving, torch.uint8).any(0).tolist()
    shared = []
    for parameter, is_mine, is_there in zip(parameters, leaving, leaves_anywhere):
        if is_there:
            if parameter.grad is None or (rounds.sums and not is_mine):  # a sum that is there counts once
                parameter.grad = torch.zeros_like(parameter)
            shared.append(parameter.grad)
    average(communicator, shared, ReduceOp.SUM if rounds.sums else ReduceOp.AVG)


def register_again(inner: Any) -> None:
    """Registers a model whose tensors, or whose algorithm, have changed. Ranks whose weights differ come to their mean
    first; what the algorithm remembers is kept, tensor by tensor. Collective.

    Args:
      inner: the object behind the wrapped model.

    Raises:
      PeltonError: the ranks disagree on what has changed; or what the communication failed with.
    """
    communicator = inner.process_group.get_global_communicator()
    rounds = inner._live_rounds()
    changes = [*rounds.changes(), *([] if inner._snapshot.is_current() else ["parameters came, went or were thawed"])]
    bring_together(rounds, communicator, inner._selected.trainable)
    if rounds.weights_are_equal and not rounds.may_differ:
        share_local_gradients(inner, rounds)
    state = _memory(inner)
    if rounds.may_differ:
        warn_of_meeting(inner.bagua_module_name, changes)
    # An optimizer's state that was loaded may differ by rank; else each rank's own is part of its training.
    takes_rank_0s = rounds.remembers_optimizer
    inner._rounds = None
    if takes_rank_0s:
        inner._known = {}
    rounds.detach(inner._session.timeout_s)
    before = {id(tensor): tensor for _, tensor in inner._selected.all}
    inner._selected = inner._register(inner.bagua_optimizers if takes_rank_0s else ())
    new = [name for name, tensor in inner._selected.all if id(tensor) not in before]
    if new:
        warn(f"{inner.bagua_module_name}: {', '.join(new)}: not there when it was wrapped; has rank 0's values now")
    if state is not None:
        inner._reinstall(carried(state, inner._live_rounds().state()))


def consolidate(inner: Any) -> None:
    """See `BaguaDistributedDataParallel.consolidate`.

    Args:
      inner: the object behind the wrapped model.
    """
    communicator = inner.process_group.get_global_communicator()
    rounds = inner._live_rounds()
    bring_together(rounds, communicator, inner._selected.trainable)
    if rounds.may_differ:
        average_buffers(communicator, inner.module, inner.parameters_to_ignore)


def install_agreed(inner: Any, state: AlgorithmState) -> None:
    """Registers a model with a state that fits on all ranks, else without one. Collective.

    Args:
      inner: the object behind the wrapped model.
      state: what the algorithm is to go on from.

    Raises:
      InvalidArgument: it does not fit, on this rank or another.
    """
    communicator = inner.process_group.get_global_communicator()
    try:
        with agreeing(communicator, InvalidArgument):
            inner._install(inner._selected, state)
    except InvalidArgument:
        rounds, inner._rounds = inner._rounds, None
        if rounds is not None:
            rounds.detach(inner._session.timeout_s)
        inner._install(inner._selected, None)
        raise


def inherit(inner: Any, state: AlgorithmState) -> None:
    """Registers a model with a state, in the place of a trainer that has died: its peers know nothing of it. Not
    collective.

    Args:
      inner: the object behind the wrapped model.
      state: what the algorithm is to go on from.
    """
    inner._reinstall(state)
    inner._loaded.state_came()


def begin_anew(inner: Any) -> None:
    """Registers a model as if it had just been wrapped: what the algorithm remembered was of other weights. What is
    written in Python is left alone. Collective.

    Args:
      inner: the object behind the wrapped model.
    """
    if runtime_algorithm(inner.bagua_algorithm) is not None:
        inner._reinstall(None)


def _memory(inner: Any) -> AlgorithmState | None:
    """What the algorithm is to go on from, if it is the same one and any rank remembers something. Collective."""
    state: AlgorithmState | None = None
    registered = runtime_algorithm(inner.bagua_algorithm)
    if registered is not None and registered == inner._registered_as:
        with contextlib.suppress(PeltonError):
            state = inner._state()
    communicator = inner.process_group.get_global_communicator()
    nobody_has = everyone(communicator, state is None or not (state.steps or state.runtime[2]))
    return state if everyone(communicator, state is not None) and not nobody_has else None


def carried(state: AlgorithmState, fresh: _C.State) -> AlgorithmState:
    """What is remembered of tensors that are still there, by name, and for the others what is remembered at first.

    Args:
      state: what was remembered before the model changed.
      fresh: what a registration of the model as it is now begins with.
    """
    rounds, _, tensors = state.runtime
    known = {(key, name): (begin, values) for key, name, begin, values in tensors}
    merged = []
    for key, name, begin, values in fresh[2]:
        if (key, name) in known:
            _copy_overlap(known[key, name], (begin, values))
        merged.append((key, name, begin, values))
    return replace(state, runtime=(rounds, [], merged))


def _copy_overlap(source: tuple[int, torch.Tensor], target: tuple[int, torch.Tensor]) -> None:
    (source_begin, source_values), (target_begin, target_values) = source, target
    begin = max(source_begin, target_begin)
    end = min(source_begin + len(source_values), target_begin + len(target_values))
    if begin < end and source_values.dtype == target_values.dtype:
        part = source_values[begin - source_begin : end - source_begin]
        target_values[begin - target_begin : end - target_begin].copy_(part)
