"""Hears of the steps of every optimizer in the process, also of those that `with_bagua` was not told of."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pelton._training import _before_writes
from pelton._training._parameters import NamedTensors, parameter_ids
from pelton._training.data_parallel._scalers import note_step, watch_scalers
from pelton._training.data_parallel._strangers import described, idle, strangers
from pelton._warn import warn
from pelton.errors import FailedPrecondition

_SAMPLED_PARAMETERS = 8
_SAMPLED_VALUES = 64


class Listener(Protocol):
    """Threads: the trainer's. Owns: its own."""

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer, any one, is about to step."""

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""

    def before_scaled_step(self, scaler: Any, optimizer: Any) -> None:
        """A gradient scaler is asked to step an optimizer, any one, or an object that wraps some."""

    def step_skipped(self, optimizer: Any) -> None:
        """A gradient scaler has found an overflow on this rank, so that what it was asked to step does not step."""


# In the order in which they were wrapped, the same on all ranks: what they do may be collective.
_listeners: list[weakref.ref[Listener]] = []
_removers: list[Callable[[], None]] = []


def listen(listener: Listener) -> None:
    """Tells a listener of all steps from now on, for as long as it is there."""
    _listeners.append(weakref.ref(listener, _drop))
    if not _removers:
        _removers.append(register_optimizer_step_pre_hook(_before_step).remove)
        _removers.append(register_optimizer_step_post_hook(_after_step).remove)
        _removers.append(watch_scalers(_before_scaled_step, _step_skipped))


def forget(listener: Listener) -> None:
    """Tells it no more. Idempotent."""
    for reference in [r for r in _listeners if r() is listener]:
        _drop(reference)


def _drop(reference: weakref.ref[Listener]) -> None:
    if reference in _listeners:
        _listeners.remove(reference)
    while not _listeners and _removers:
        _removers.pop()()


@_disable_dynamo
def _before_step(optimizer: Optimizer, *_: object) -> None:
    _before_writes.settle()
    note_step(optimizer)
    for listener in [reference() for reference in _listeners]:
        if listener is not None:
            listener.before_step(optimizer)


@_disable_dynamo
def _after_step(optimizer: Optimizer, *_: object) -> None:
    for listener in [reference() for reference in _listeners]:
        if listener is not None:
            listener.after_step(optimizer)


@_disable_dynamo
def _before_scaled_step(scaler: Any, optimizer: Any) -> None:
    for listener in [reference() for reference in _listeners]:
        if listener is not None:
            listener.before_scaled_step(scaler, optimizer)


@_disable_dynamo
def _step_skipped(optimizer: Any) -> None:
    for listener in [reference() for reference in _listeners]:
        if listener is not None:
            listener.step_skipped(optimizer)


@dataclass(frozen=True)
class _Source:
    """What was known of an optimizer's gradients at its last step. Threads: a value. Owns: nothing."""

    count: int  # of backward passes until then
    rounds: int | None = None  # until then; None: not looked at
    gradients: list[tuple[int, int]] | None = None  # each one's id and version; None: not looked at


class ModelSteps:
    """Which optimizers step a model's communicated parameters, and whether they may: when all of them have stepped is
    the trigger's to know (`core/round/trigger.h`).

    Where an algorithm counts the steps of the optimizers that it was given, a step of another one, or of no optimizer
    at all, would leave the ranks apart without a word: it is refused. Threads: the trainer's. Owns: nothing.
    """

    def __init__(
        self, model: str, algorithm: str, trainable: NamedTensors, given: Sequence[Optimizer], counts_given: bool
    ) -> None:
        """Args:
        model: its name in errors.
        algorithm: its name in errors.
        trainable: what is communicated.
        given: the optimizers that the algorithm was given.
        counts_given: whether it goes by their steps alone.
        """
        self._model = model
        self._algorithm = algorithm
        self._names = {id(parameter): name for name, parameter in trainable}
        self._parameters = [parameter for _, parameter in trainable]
        self._given = list(given)
        self._counts_given = counts_given
        self._count = 0  # of steps of the given ones
        self._found: weakref.WeakKeyDictionary[Optimizer, tuple[list[int], str]] = weakref.WeakKeyDictionary()
        self._sources: weakref.WeakKeyDictionary[Optimizer, _Source] = weakref.WeakKeyDictionary()
        self._count_before: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._count_at_backward = -1  # the first backward pass is as one after a step
        self.unknown: list[str] = []  # kinds of optimizers that have stepped the model and were not given
        self._print_at_backward: list[int] | None = None
        self._is_local = False  # the gradients are of backward passes in `no_sync` alone
        self._is_looked_at = [False] * len(given)  # whether each one steps anything of the model
        self._said: set[str] = set()  # kinds of warnings
        self._looked_through: weakref.WeakKeyDictionary[Optimizer, list[int]] = weakref.WeakKeyDictionary()

    def is_given(self, optimizer: Optimizer) -> bool:
        """Whether the algorithm was given it."""
        return any(optimizer is given for given in self._given)

    def given_behind(self, optimizer: Any) -> list[Optimizer]:
        """Those of the given ones that step as this one does: itself, or those of whose parameters it has some, as an
        object has that wraps an optimizer (Lookahead).
        """
        if self.is_given(optimizer):
            return [optimizer]
        held = parameter_ids(optimizer)
        return [given for given in self._given if not held.isdisjoint(parameter_ids(given))]

    def unused(self, count: int) -> int:
        """How many backward passes have been that an optimizer which steps may not have used yet.

        Args:
          count: of all of them.
        """
        return count - min((source.count for source in self._sources.values()), default=0)

    def take_over(self, before: ModelSteps) -> None:
        """Goes on for the same model, registered anew: whether its gradients are of `no_sync` alone, and, unless it was
        wrapped again with other optimizers, what has been said once.
        """
        self._is_local = before._is_local
        if before._given == self._given:
            self._said = before._said

    def parameter_of(self, optimizer: Optimizer) -> str:
        """The first communicated parameter that it steps; empty: none."""
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        known = self._found.get(optimizer)
        if known is None or known[0] != sizes:
            names = (self._names.get(id(p)) for group in optimizer.param_groups for p in group["params"])
            known = (sizes, next((name for name in names if name is not None), ""))
            self._found[optimizer] = known
        return known[1]

    def before(self, optimizer: Optimizer, module: nn.Module) -> None:
        """A step begins of an optimizer that concerns the model.

        Args:
          optimizer: it.
          module: the model.

        Warns:
          UserWarning: once, if it steps parameters that no wrapped model has, as those of a loss: they need not be
            wrong, because they may be averaged otherwise; and once, if one that was given steps none of the model's.
        """
        self._count_before[optimizer] = self._count
        self._look_at_given(optimizer, module)
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        if "strangers" in self._said or self._looked_through.get(optimizer) == sizes:
            return
        self._looked_through[optimizer] = sizes
        found = strangers([optimizer])
        if found:
            self._said.add("strangers")
            warn(
                f"{type(optimizer).__name__}.step(): beside those of {self._model} it steps {described(found)} that no "
                "wrapped model has (of a loss, of a part that was not wrapped, or replaced since). Pelton averages "
                "nothing of that: unless something else does, the ranks drift apart in it. Wrap one module that has "
                "all of the parameters, or wrap a second one"
            )

    def _look_at_given(self, optimizer: Optimizer, module: nn.Module) -> None:
        """Once a registration, and not before it steps, because its own model may be wrapped until then."""
        looked = self._is_looked_at
        number = next((n for n, given in enumerate(self._given) if given is optimizer and not looked[n]), None)
        if number is None:
            return
        looked[number] = True
        if not any(optimizer is without for without in idle(self._given, module)):
            return
        self._looked_through[optimizer] = [len(group["params"]) for group in optimizer.param_groups]
        if "idle" not in self._said:
            self._said.add("idle")
            kind = type(optimizer).__name__
            warn(
                f"{kind} was given at the wrapping of {self._model}, but steps none of its parameters: it is "
                f"another model's, or they were replaced after it was made. Make the {kind} of the parameters that "
                "the model has now, and wrap the model again with that one"
            )

    def backward_began(self) -> None:
        """A backward pass makes its first gradient.

        Warns:
          UserWarning: once, if it makes a graph of the gradients, too: what is computed from that need not be wrong.
        """
        if "graphs" in self._said or not torch.is_grad_enabled():
            return
        self._said.add("graphs")
        warn(
            f"{self._model}: backward(create_graph=True) averages the values of the gradients, but their graph is this "
            "rank's alone: what torch.autograd.grad makes of it (products with a Hessian) differs between ranks. "
            "Average that by bagua.allreduce_inplace before it changes weights. Another backward() through the "
            "gradients is averaged as ever, and so is a penalty of torch.autograd.grad(..., create_graph=True)"
        )

    def refuse_within_backward(self, optimizer: Optimizer, by_weights: bool) -> None:
        """Refuses a step within a backward pass, where weights are communicated; where gradients are, the end of the
        pass finds those that were used up, and names them.

        Args:
          optimizer: what is about to step.
          by_weights: whether weights are communicated.

        Raises:
          FailedPrecondition: they are.
        """
        if by_weights:
            raise FailedPrecondition(
                f"{type(optimizer).__name__}.step(): '{self.parameter_of(optimizer)}' of {self._model} has an "
                "optimizer that steps within backward (in a hook of register_post_accumulate_grad_hook?), but "
                f"{self._algorithm} goes by steps after backward() has returned. Step there, on all ranks"
            )

    def check_source(self, optimizer: Optimizer, count: int, count_rounds: Callable[[], int]) -> None:
        """Refuses gradients that no backward pass made: each rank has its own.

        Args:
          optimizer: what is about to step.
          count: of backward passes until now that have made a gradient here.
          count_rounds: tells how many rounds have been. One that makes no gradient here has a round all the same, by
            which those of the other ranks come.

        Raises:
          FailedPrecondition: there has been none at all; or none since its last two steps, and yet other gradients.

        Warns:
          UserWarning: once, if all were in `no_sync`, which need not be wrong: they may have been averaged otherwise.
        """
        if self._is_local and "local" not in self._said:
            self._said.add("local")
            warn(
                f"{type(optimizer).__name__}.step(): all backward passes of {self._model} since the last step were "
                "inside no_sync(), so that each rank has gradients of its own, and the ranks drift apart. Let the "
                "last pass before a step be outside of it; where they were averaged otherwise, step in no_sync(), too"
            )
        self._is_local = False
        seen = self._sources.get(optimizer)
        if count != 0 and (seen is None or seen.count != count):
            self._sources[optimizer] = _Source(count)
            return
        rounds = count_rounds()
        mine = [p for p in self._parameters_of(optimizer) if p.grad is not None]
        now = [(id(parameter.grad), parameter.grad._version) for parameter in mine if parameter.grad is not None]
        self._sources[optimizer] = _Source(count, rounds, now)
        if rounds != (seen.rounds if seen is not None else 0):
            return
        was_changed = seen is not None and seen.gradients is not None and seen.gradients != now
        if (was_changed or count == 0) and any(bool(p.grad.any()) for p in mine if p.grad is not None):
            raise FailedPrecondition(
                f"{type(optimizer).__name__}.step(): the gradient of '{self._names[id(mine[0])]}' of {self._model} was "
                "not made by a backward pass since the model was wrapped, or since the last step: each rank has its "
                "own (assigned from torch.autograd.grad or torch.func.grad?), and the ranks would drift apart. Call "
                "backward(), or average it with bagua.allreduce_inplace and step inside no_sync()"
            )

    def _parameters_of(self, optimizer: Optimizer) -> list[torch.Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"] if id(p) in self._names]

    def after(self, optimizer: Optimizer) -> None:
        """The step has ended, or was skipped.

        Raises:
          FailedPrecondition: only steps of the given optimizers count, and none of those is behind this one.
        """
        if self.is_given(optimizer):
            self._count += 1
            return
        if type(optimizer).__name__ not in self.unknown:
            self.unknown.append(type(optimizer).__name__)
        if self._counts_given and self._count == self._count_before.get(optimizer):
            kind = type(optimizer).__name__
            raise FailedPrecondition(
                f"{kind}.step() changed '{self.parameter_of(optimizer)}' of {self._model}, but {self._algorithm} "
                f"brings the ranks together by the steps of {self._list_given()} alone, given to with_bagua: the ranks "
                f"would drift apart. Give this {kind} to with_bagua on all ranks, and call that again where an "
                "optimizer is replaced"
            )

    def backward_ended(self, is_synchronized: bool) -> None:
        """A backward pass has ended.

        Args:
          is_synchronized: whether it was outside `no_sync`.

        Raises:
          FailedPrecondition: the weights have changed since the one before it, and between that one and its
            predecessor no given optimizer had stepped, nor has one since.
        """
        self._is_local = not is_synchronized
        if self._is_local or not self._counts_given:
            return
        if self._count != self._count_at_backward:
            self._count_at_backward, self._print_at_backward = self._count, None
            return
        before, self._print_at_backward = self._print_at_backward, fingerprint(self._parameters)
        if before is not None and before != self._print_at_backward:
            raise FailedPrecondition(
                f"{self._model}: its weights changed between two backward passes, but {self._list_given()}, given to "
                f"with_bagua, did not step. {self._algorithm} brings the ranks together by those steps alone: the "
                "ranks would drift apart. Let a torch.optim.Optimizer make the change and give that to with_bagua on "
                "all ranks, or use gradient_allreduce"
            )

    def _list_given(self) -> str:
        return " and ".join(f"the {type(given).__name__}" for given in self._given) or "no optimizer"


def is_in_backward() -> bool:
    """Whether a backward pass is running: a forward pass within it is checkpointing's, which computes again what the
    checkpoint did not keep.
    """
    return torch._C._current_graph_task_id() != -1


def fingerprint(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Numbers that change when something writes to the tensors: their versions, and, because changes of `.data` have
    none, the bits of what some values of some of them add up to, which are the same again where that is no number.
    """
    stride = max(1, len(tensors) // _SAMPLED_PARAMETERS)
    with torch.no_grad():
        sums = [t.detach().reshape(-1)[:_SAMPLED_VALUES].double().sum() for t in tensors[::stride]]
        return [tensor._version for tensor in tensors] + [int(value.view(torch.int64)) for value in sums]


def unused_backwards(predecessor: Any) -> int:
    """How many backward passes have made gradients, the same on all ranks, that a step after the wrapping may use.

    Args:
      predecessor: the object behind the model until now; None: it was not wrapped.
    """
    rounds = predecessor._rounds if predecessor is not None else None
    if rounds is None or not rounds.needs_backward or rounds.may_differ:
        return 0
    count: int = predecessor._steps.unused(predecessor._backward_count)
    return count
