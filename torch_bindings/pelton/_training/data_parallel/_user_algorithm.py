"""Algorithms that a user writes: calls their hooks at the right moments, and keeps the rounds of their buckets."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from pelton import _C
from pelton._training import _session
from pelton._training._parameters import NamedTensors
from pelton._training._state_broadcast import agree
from pelton._training._user_rounds import UserRounds
from pelton._training.algorithms.base import AlgorithmImpl, RegisteredAlgorithm
from pelton._training.bucket import BackendBucket, BaguaBucket
from pelton._training.data_parallel._rounds import Rounds
from pelton._training.data_parallel._steps import is_in_backward
from pelton._training.tensor import effective_tensor, forget, install
from pelton.errors import FailedPrecondition, InvalidArgument, PeltonError, Unsupported

if TYPE_CHECKING:
    from pelton._training.data_parallel.bagua_distributed import BaguaDistributedDataParallel

_HOOKS = (
    "init_tensors",
    "tensors_to_buckets",
    "init_forward_pre_hook",
    "init_backward_hook",
    "init_post_backward_hook",
    "init_post_optimizer_step_hook",
    "init_operations",
)


def runtime_algorithm(algorithm: AlgorithmImpl) -> RegisteredAlgorithm | None:
    """The runtime's algorithm that does the work; None where hooks in Python do: those of the class itself, or of one
    that is derived from the class that names the runtime's.
    """
    for kind in type(algorithm).__mro__:
        if "registered" in vars(kind):
            return algorithm.registered()
        if any(hook in vars(kind) for hook in _HOOKS):
            return None
    return None


class UserAlgorithm(Rounds):
    """The `Rounds` of one wrapped model under an algorithm of the user's.

    Threads: the trainer's; backward hooks run on autograd's thread while the trainer waits in backward. Owns: the
    rounds, and the hooks on parameters and optimizers.
    """

    def __init__(self, inner: BaguaDistributedDataParallel, trainable: NamedTensors) -> None:
        """Args:
        inner: what keeps the model's ranks together.
        trainable: the parameters whose gradients the backward hook hears of.
        """
        self._inner = weakref.ref(inner)
        self._algorithm = inner.bagua_algorithm
        self._trainable = list(trainable)
        self._kinds = [(tensor.dtype, tensor.shape) for _, tensor in self._trainable]
        self._buckets: list[BaguaBucket] = []
        self._rounds: UserRounds | None = None
        self._removers: list[Callable[[], None]] = []
        self._is_synchronized = True
        self._queued: weakref.ref[Any] | None = None  # alive while a backward pass holds the callback for its end
        self._is_in_backward = False
        self._is_forward_open = False  # the forward hook ran, and the backward pass has not ended since
        self._failure: BaseException | None = None
        self._tensors: list[Any] = []
        self._locked: list[_C.AveragingControl] = []  # for the step that is under way
        self._left: list[str] = []  # local gradients when the buckets went

    # What the user's side sees.

    @property
    def bagua_buckets(self) -> list[BaguaBucket]:
        """The buckets in the order in which they are communicated."""
        return self._buckets

    def register_ordered_buckets(self, buckets: Sequence[BackendBucket | BaguaBucket]) -> None:
        """Lets the model communicate these buckets, in this order. Collective over the group.

        Raises:
          PeltonError: as `UserRounds`.
        """
        inner = self._alive()
        self.finish()
        self._let_go_of_buckets()
        self._rounds = UserRounds(inner.process_group, inner.bagua_module_name, buckets)
        self._buckets = self._rounds.buckets
        self.mark_local(self._left)

    # What BaguaDistributedDataParallel asks of all rounds.

    chooses_buckets = False

    def build(self) -> None:
        """Asks the algorithm for its tensors, buckets, hooks and operations, and registers them. Collective.

        Raises:
          InvalidArgument: what the algorithm gave cannot be served, or another rank's raised something.
        """
        self._check_overrides()
        install()  # an algorithm that is written in Python registers tensors by their own methods
        inner = self._alive()
        complaint: PeltonError | None = None
        raised: BaseException | None = None
        try:
            self._init_algorithm(inner)
        except Exception as error:
            raised = error
            complaint = InvalidArgument(f"{type(self._algorithm).__name__} raised {type(error).__name__}: {error}")
        try:
            agree(inner.process_group.get_global_communicator(), complaint)
        except PeltonError:
            if raised is not None:
                raise raised from None
            raise
        self.register_ordered_buckets(self._buckets)
        self._hook()

    def before_forward(self, inputs: Any) -> None:
        """In training, before each forward pass: calls the algorithm's hook.

        Args:
          inputs: the module's positional arguments.
        """
        if self._is_synchronized and not is_in_backward():
            with self._failing("the forward hook"):
                self._forward_hook(inputs)
            self._is_forward_open = True

    def set_synchronized(self, enabled: bool) -> None:
        """Off: no hook of the algorithm's is called, and gradients accumulate."""
        self._is_synchronized = enabled

    def check(self) -> None:
        """Raises what an earlier round failed with; or that the last backward pass ended in the middle of one."""
        if self._failure is not None:
            raise self._failure
        if self._rounds is None:
            return
        self._rounds.check()
        if is_in_backward():
            return
        if self._is_in_backward and self._rounds.is_open and not self._rounds.is_complete:
            self._fail(
                FailedPrecondition(
                    f"the last backward of model '{self._alive().bagua_module_name}' ended in the middle of its "
                    "round, perhaps by an exception. The other ranks have a part of its tensors, so that no rank can "
                    "go on; mend what ended the backward on this rank, and start the job again from its last checkpoint"
                ),
                "a backward pass",
            )
        self._is_in_backward = False

    def changes(self) -> list[str]:
        """Names of parameters that were cast or resized since registration."""
        pairs = zip(self._trainable, self._kinds)
        return [name for (name, tensor), kind in pairs if (tensor.dtype, tensor.shape) != kind]

    def local_gradients(self) -> list[str]:
        """See `Rounds`; also those of parameters whose gradients are in no bucket."""
        rounds = self._rounds
        if rounds is None:
            return self._left
        slots = [(name, rounds.slot_of(parameter)) for name, parameter in self._trainable if parameter.grad is not None]
        return [name for name, slot in slots if slot is None or not slot.is_gradient() or slot.is_dirty]

    def mark_local(self, names: Sequence[str]) -> None:
        """See `Rounds`."""
        for name, parameter in self._trainable:
            slot = self._rounds.slot_of(parameter) if self._rounds is not None else None
            if slot is not None and name in names:
                slot.is_dirty = True

    def after_forward(self, outputs: Sequence[torch.Tensor], is_training: bool) -> None:
        """Has the backward pass that reaches one of these tensors call the post-backward hook when it ends."""
        if is_in_backward():
            self._on_output()
            return
        for output in outputs:
            hooked: Any = output
            hooked.register_hook(functools.partial(_reached, weakref.ref(self)))

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends a backward pass whose end was not seen, where the loss was not made of the model's outputs; and keeps
        averages beside training from changing weights while the optimizer does.
        """
        if self._is_in_backward and self._queued_callback() is None:
            self._end_backward()
        for control in self._controls():
            if not control.held_by_this_thread():
                control.lock_weight(_session.current().timeout_s)
                self._locked.append(control)

    def after_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Calls the algorithm's hook after a step of an optimizer that was given; see `Rounds`."""
        while self._locked:
            self._locked.pop().unlock_weight()
        if any(optimizer is given for given in self._alive().bagua_optimizers):
            with self._failing("the post-step hook"):
                self._post_step_hook(optimizer)
        return self._post_step(_C.Event.AFTER_STEP, optimizer)

    def step_skipped(self, optimizer: torch.optim.Optimizer) -> bool:
        """See `Rounds`."""
        return self._post_step(_C.Event.STEP_SKIPPED, optimizer)

    def _post_step(self, event: _C.Event, optimizer: torch.optim.Optimizer) -> bool:
        if self._rounds is None:
            return False
        given = self._alive().bagua_optimizers
        is_given = any(optimizer is other for other in given)
        return self._rounds.post(event, id(optimizer), is_given, len(given), self._is_synchronized)

    def finish(self) -> int:
        """Completes the round that is open, if one is; the number of its buckets.

        Raises:
          PeltonError: what it failed with.
        """
        return 0 if self._rounds is None else self._rounds.finish()

    def buckets(self) -> list[list[str]]:
        """Tensor names by bucket."""
        return [list(bucket.tensor_names) for bucket in self._buckets]

    def statistics(self) -> dict[str, float]:
        """As those of a runtime's model."""
        return self._rounds.statistics() if self._rounds is not None else {}

    def state(self) -> Any:
        """Raises Unsupported: what an algorithm of the user's remembers is the user's to save."""
        raise Unsupported(f"{type(self._algorithm).__name__}: its state is its own; the runtime keeps none of it")

    def detach(self, timeout_s: float = 0.0) -> None:
        """Removes the hooks and frees the buckets; tensors that lie in them get memory of their own. Idempotent.

        Args:
          timeout_s: see `Rounds`; nothing is waited for.
        """
        for remove in self._removers:
            remove()
        self._removers = []
        self._let_go_of_buckets()
        for tensor in self._tensors:
            forget(tensor)

    def _let_go_of_buckets(self) -> None:
        self._left = self.local_gradients()
        rounds, self._rounds = self._rounds, None
        if rounds is not None:
            rounds.detach()

    def _alive(self) -> BaguaDistributedDataParallel:
        inner = self._inner()
        assert inner is not None
        return inner

    def _check_overrides(self) -> None:
        if type(self._algorithm).init_operations is AlgorithmImpl.init_operations:
            raise Unsupported(
                f"{type(self._algorithm).__name__} neither names an algorithm of the runtime (`registered`) nor says "
                "what to do with a bucket (`init_operations`)"
            )

    def _init_algorithm(self, inner: BaguaDistributedDataParallel) -> None:
        tensors: list[Any] = list(self._algorithm.init_tensors(inner))
        self._tensors = tensors
        for tensor in tensors:
            if not tensor.is_bagua_tensor():
                raise InvalidArgument("init_tensors: must return registered tensors; see ensure_bagua_tensor")
            if tensor.device.type != "cpu":
                raise Unsupported(
                    f"'{tensor.bagua_tensor_name}' is on {tensor.device}; an algorithm written in Python takes tensors "
                    "of the CPU"
                )
        suggested = suggest_buckets(tensors, inner._bucket_bytes)
        self._buckets = list(self._algorithm.tensors_to_buckets(suggested, inner._flatten))
        self._forward_hook = self._algorithm.init_forward_pre_hook(inner)
        self._backward_hook = self._algorithm.init_backward_hook(inner)
        self._post_backward_hook = self._algorithm.init_post_backward_hook(inner)
        self._post_step_hook = self._algorithm.init_post_optimizer_step_hook(inner)
        for bucket in self._buckets:
            self._algorithm.init_operations(inner, bucket)

    def _hook(self) -> None:
        this = weakref.ref(self)
        parameter: Any
        for name, parameter in self._trainable:
            hook = functools.partial(_accumulated, this, name)
            self._removers.append(parameter.register_post_accumulate_grad_hook(hook).remove)

    # The moments at which hooks are called.

    def _on_gradient(self, name: str, parameter: torch.Tensor) -> None:
        slot = self._rounds.slot_of(parameter) if self._rounds is not None else None
        if slot is not None:
            slot.is_dirty = True  # until a round has communicated it, which need not be this pass's
        if not self._is_synchronized:
            return
        self._is_in_backward = True
        self._queue_end()
        with self._failing(f"the backward hook of '{name}'"):
            if parameter.grad is None:
                raise FailedPrecondition(
                    f"parameter '{name}': a hook of the backward pass used up its gradient before the ranks' gradients "
                    "were communicated (an optimizer that steps within backward?); step after backward() has returned"
                )
            self._backward_hook(name, parameter)

    def _on_output(self) -> None:
        if self._is_synchronized or self._is_forward_open:
            self._queue_end()

    def _queued_callback(self) -> Any:
        return self._queued() if self._queued is not None else None

    def _queue_end(self) -> None:
        """The backward pass that is running owns the callback: should it fail, the token goes with it."""
        if self._queued_callback() is not None:
            return
        token = _Token()
        self._queued = weakref.ref(token)
        callback = functools.partial(_ended, weakref.ref(self), token)
        torch.autograd.Variable._execution_engine.queue_callback(callback)

    def _on_end(self) -> None:
        self._queued = None
        rounds = self._rounds
        # An inner backward pass of re-entrant checkpointing, where no output was reached first: the round goes on.
        is_nested = torch._C._current_autograd_node() is not None
        if is_nested and rounds is not None and not rounds.is_complete:
            return
        self._end_backward()

    def _end_backward(self) -> None:
        self._is_in_backward = self._is_forward_open = False
        with self._failing("the post-backward hook"):
            self._post_backward_hook()

    def _controls(self) -> list[_C.AveragingControl]:
        operations = [operation for bucket in self._buckets for operation in bucket.backend_bucket.operations]
        return [operation.control for operation in operations if operation.control is not None]

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """An exception of the user's ends the model's rounds on all ranks; here it goes on as it is."""
        try:
            yield
        except BaseException as error:
            self._remember(error, what)
            raise

    def _remember(self, error: BaseException, what: str) -> None:
        rounds, inner = self._rounds, self._alive()
        if self._failure is None:
            self._failure = error
        if rounds is not None:
            rank = inner.process_group.get_global_communicator().rank()
            rounds.abort(
                error, f"rank {rank}: {what} of '{inner.bagua_module_name}' raised {type(error).__name__}: {error}"
            )

    def _fail(self, error: PeltonError, what: str) -> None:
        self._remember(error, what)
        raise error


class _Token:
    """What a running backward pass keeps alive. Threads: any. Owns: nothing."""


def _accumulated(this: weakref.ref[UserAlgorithm], name: str, parameter: torch.Tensor) -> None:
    algorithm = this()
    if algorithm is not None:
        algorithm._on_gradient(name, parameter)


def _reached(this: weakref.ref[UserAlgorithm], _gradient: torch.Tensor) -> None:
    algorithm = this()
    if algorithm is not None:
        algorithm._on_output()


def _ended(this: weakref.ref[UserAlgorithm], _token: _Token) -> None:
    algorithm = this()
    if algorithm is not None:
        algorithm._on_end()


def suggest_buckets(tensors: Sequence[Any], bucket_bytes: int) -> list[list[Any]]:
    """Groups tensors in their order: a bucket closes when the next tensor would make it larger than `bucket_bytes`,
    or is of another dtype or device.
    """
    buckets: list[list[Any]] = []
    size, kind = 0, None
    for tensor in tensors:
        effective = effective_tensor(tensor)
        shape = tensor if effective is None else effective
        if not buckets or kind != (shape.dtype, shape.device) or size + shape.nbytes > bucket_bytes:
            buckets.append([])
            size, kind = 0, (shape.dtype, shape.device)
        buckets[-1].append(tensor)
        size += shape.nbytes
    return buckets
