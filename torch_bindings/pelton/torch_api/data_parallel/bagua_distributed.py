"""The object behind a wrapped model: keeps all ranks at one state, and its gradients communicated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from pelton.errors import FailedPrecondition, InvalidArgument, PeltonError, Unsupported
from pelton.torch_api import _session
from pelton.torch_api._model_backend import ModelBackend
from pelton.torch_api._parameters import NamedTensors, SelectedTensors, Snapshot, select
from pelton.torch_api._state_broadcast import agree, agree_on, broadcast_state, everyone
from pelton.torch_api.algorithms.base import Algorithm, RegisteredAlgorithm
from pelton.torch_api.communication import BaguaProcessGroup
from pelton.torch_api.data_parallel._algorithm_state import AlgorithmState, from_dict
from pelton.torch_api.data_parallel._attachment import nothing, release
from pelton.torch_api.data_parallel._averaging_rounds import AveragingRounds
from pelton.torch_api.data_parallel._make_rounds import Registration, make_rounds
from pelton.torch_api.data_parallel._rounds import Rounds
from pelton.torch_api.data_parallel._user_algorithm import UserAlgorithm, runtime_algorithm


@dataclass(frozen=True)
class Bucket:
    """The tensors that are communicated together. Threads: a value. Owns: their names."""

    name: str
    tensor_names: tuple[str, ...]


class BaguaDistributedDataParallel:
    """Keeps one model's ranks together. A copy of the model (deepcopy, pickle) is a plain model, without it.

    Threads: the trainer's; gradients become ready on autograd's threads without the GIL. Owns: the runtime's model
    with its hooks and buckets, and the hooks on the module and the optimizers.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Iterable[torch.optim.Optimizer],
        algorithm: Algorithm,
        process_group: BaguaProcessGroup,
        bagua_module_name: str | None = None,
        gradient_as_bucket_view: bool = True,
        find_unused_parameters: bool = False,
        *,
        predecessor: BaguaDistributedDataParallel | None = None,
    ) -> None:
        """Brings all ranks to rank 0's state and installs the hooks. Collective over the group.

        Args:
          module: the model; its parameters' names are those of `named_parameters`.
          optimizers: what steps it.
          algorithm: how gradients are communicated.
          process_group: the ranks that take part.
          bagua_module_name: its name in errors; that of rank 0 counts.
          gradient_as_bucket_view: gradients may lie in the buckets.
          find_unused_parameters: accepted and not needed: unused parameters are always found.
          predecessor: what kept the model together until now; it is detached, and where it did so by the same
            algorithm on the same group, this one goes on from its state.

        Raises:
          InvalidArgument: the model or an argument cannot be served, or differs between ranks; the text names it.
          DeadlineExceeded, PeerLost: not all ranks took part.
        """
        self.module = module
        self.bagua_optimizers = _checked_optimizers(optimizers)
        self.process_group = process_group
        self.bagua_algorithm = _checked_algorithm(algorithm).reify(process_group)
        self.bagua_module_name = bagua_module_name or type(module).__name__
        self.bagua_train_step_counter = 0
        self.find_unused_parameters = find_unused_parameters
        self._flatten = gradient_as_bucket_view
        self._is_synchronized = True
        self._ended: str | None = None
        self._rounds: Rounds | None = None
        self._first_algorithm = runtime_algorithm(self.bagua_algorithm)
        self._known: dict[int, torch.Tensor] = {}
        self._session = _session.current()
        inherited = self._inherit(predecessor)
        self._selected = self._register(self.bagua_optimizers, inherited)
        self._removers: list[Callable[[], None]] = []
        for optimizer in self.bagua_optimizers:
            self._removers.append(optimizer.register_step_pre_hook(self._before_step).remove)
            self._removers.append(optimizer.register_step_post_hook(self._after_step).remove)
        self._session.add_model(self)

    def bagua_build_params(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters whose gradients are communicated, each once, in registration order."""
        return [(name, tensor) for name, tensor in self._selected.trainable if isinstance(tensor, nn.Parameter)]

    @property
    def bagua_buckets(self) -> list[Any]:
        """The buckets in the order in which they are communicated: `Bucket`, or an algorithm's own `BaguaBucket`.
        Empty after `detach`.
        """
        if self._rounds is None:
            return []
        if isinstance(self._rounds, UserAlgorithm):
            return list(self._rounds.bagua_buckets)
        return [Bucket(f"bucket {i}", tuple(names)) for i, names in enumerate(self._rounds.buckets())]

    @property
    def parameters_to_ignore(self) -> list[str]:
        """Names of the parameters and buffers that stay each rank's own: ignored ones and experts."""
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        return [name for name, tensor in named if id(tensor) in self._selected.left_out]

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether backward passes communicate; False inside `no_sync`."""
        return self._is_synchronized

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, enabled: bool) -> None:
        self._is_synchronized = enabled
        if self._rounds is not None:
            self._rounds.set_synchronized(enabled)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes within it only accumulate; the next one after it communicates the sum.

        Where an algorithm communicates weights, forward passes and steps within it are local, and no steps of its
        schedule.
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def statistics(self) -> dict[str, float]:
        """Counts since registration: rounds, wait_seconds, bytes, sent_bytes, copied_bytes, plan_generation."""
        return self._rounds.statistics() if self._rounds is not None else {}

    def algorithm_state_dict(self) -> dict[str, Any]:
        """What the algorithm remembers on this rank: residuals, peers' weights, momenta, counts; plain containers and
        copies of tensors. Each rank has a state of its own. Where a delayed round is under way, it waits for its
        results and tells them, too.

        Raises:
          FailedPrecondition: another kind of round is under way, or the process group has ended.
        """
        return self._state().to_dict()

    def load_algorithm_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what `algorithm_state_dict` told on this rank of a group of the same size. Collective.

        Weights and the optimizers' state are not part of it: load them too, after wrapping, since that brings all
        ranks to rank 0's.

        Args:
          state_dict: the dictionary.

        Raises:
          InvalidArgument: it is malformed, or of another rank, algorithm or model; the text says which. Raised on
            all ranks.
          FailedPrecondition: the process group has ended.
        """
        rounds = self._live_rounds()
        communicator = self.process_group.get_global_communicator()
        state: AlgorithmState | None = None
        complaint: PeltonError | None = None
        try:
            state = from_dict(state_dict, self.process_group.ranks, communicator.rank())
            self._adopt_implementation(state)
        except PeltonError as error:
            complaint = error
        agree(communicator, complaint)
        assert state is not None
        agree_on(communicator, "state", state.common())
        rounds.detach(self._session.timeout_s)
        self._rounds = None
        self._install(self._selected, state)

    def before_forward(self, inputs: Any = ()) -> None:
        """Checks that every parameter is still registered (ALL-1), and registers anew what has changed; in training
        tells the algorithm.

        Args:
          inputs: the module's positional arguments.

        Raises:
          FailedPrecondition: the process group has ended.
          PeltonError: what an earlier round failed with; or the ranks disagree on what has changed.
        """
        if self._rounds is None:
            if self.module.training:
                self._live_rounds()
            return
        self._rounds.check()
        if not self._snapshot.is_current() or self._rounds.changes():
            self._register_again()
        if not self.module.training:
            return
        self.bagua_train_step_counter += 1
        if self._is_synchronized and self.bagua_algorithm.need_reset():
            self._register_again()
        self._live_rounds().before_forward(inputs)

    def after_forward(self, output: Any) -> None:
        """Has the backward pass that starts at `output` complete the round when it ends.

        Args:
          output: what the model returned: tensors in tuples, lists, dicts or what else is registered as a pytree.
        """
        if self._rounds is None:
            return
        leaves = _pytree.tree_leaves(output)
        self._rounds.after_forward([leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.grad_fn])

    def finish_round(self) -> None:
        """Completes the round that is open, if one is: one that a nested backward pass left open, where the loss was
        not made of the model's outputs, or one of weights. Collective then.

        Raises:
          PeltonError: what the round failed with.
        """
        if self._rounds is not None:
            self._rounds.finish()

    def wait_pending(self) -> int:
        """Completes the round that is open, if one is.

        Returns:
          The number of its buckets.

        Raises:
          PeltonError: what the round failed with.
        """
        if isinstance(self._rounds, UserAlgorithm):
            return self._rounds.wait_pending_comm_ops()
        self.finish_round()
        return len(self.bagua_buckets)

    def register_ordered_buckets(self, buckets: Sequence[Any]) -> None:
        """See `ModelBackend`."""
        if not isinstance(self._rounds, UserAlgorithm):
            raise FailedPrecondition(
                f"{self.bagua_module_name} is kept together by an algorithm of the runtime, which chooses its buckets"
            )
        self._rounds.register_ordered_buckets(buckets)

    def stop_averaging(self) -> None:
        """Ends an averaging beside training when all ranks have asked for it; without one it does nothing.

        Raises:
          DeadlineExceeded: not all ranks have asked in time.
        """
        if isinstance(self._rounds, AveragingRounds):
            self._rounds.stop()

    def resume_averaging(self) -> None:
        """Goes on with an averaging that was stopped; without one it does nothing."""
        if isinstance(self._rounds, AveragingRounds):
            self._rounds.resume()

    def detach(
        self, reason: str = "it was detached", timeout_s: float = 10.0, *, keeps_watch: bool = False
    ) -> None:
        """Makes the module a plain one again; gradients that lie in buckets get memory of their own. Idempotent.

        Args:
          reason: what a later call of this object says it fails with.
          timeout_s: how long to wait for the other ranks to end an averaging beside training. Units: seconds.
          keeps_watch: the hooks on forward passes stay, so that training on is an error that tells the reason.
        """
        rounds, self._rounds = self._rounds, None
        if rounds is not None:
            self._ended = reason
            rounds.detach(timeout_s)
        for remove in self._removers:
            remove()
        self._removers = []
        if not keeps_watch:
            release(self.module, self)

    @property
    def _bagua_backend(self) -> ModelBackend:
        return ModelBackend(self)

    def _before_step(self, *_: object) -> None:
        if self._rounds is not None:
            self._rounds.before_step()

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._rounds is not None:
            self._rounds.after_step(optimizer)

    def _live_rounds(self) -> Rounds:
        if self._rounds is None:
            reason = self._ended or "its registration failed"
            raise FailedPrecondition(f"{self.bagua_module_name} is not synchronised any more: {reason}")
        return self._rounds

    def _state(self) -> AlgorithmState:
        rounds = self._live_rounds()
        rank = self.process_group.get_global_communicator().rank()
        registered, implementation = runtime_algorithm(self.bagua_algorithm), self.bagua_algorithm.state_dict()
        if registered is None:
            kind = type(self.bagua_algorithm).__name__
            raise Unsupported(f"{kind} is written in Python: what it remembers is its own, and not kept by the runtime")
        return AlgorithmState(
            registered, self.process_group.ranks, rank, implementation, rounds.steps, rounds.state()
        )

    def _inherit(self, predecessor: BaguaDistributedDataParallel | None) -> AlgorithmState | None:
        """The predecessor's state if this one can go on from it, on all ranks alike."""
        state: AlgorithmState | None = None
        if predecessor is not None:
            with contextlib.suppress(PeltonError):  # what failed has been raised, and leaves no state
                state = self._state_left_by(predecessor)
            predecessor.detach("it was wrapped again, which failed", self._session.timeout_s, keeps_watch=True)
        return state if everyone(self.process_group.get_global_communicator(), state is not None) else None

    def _state_left_by(self, predecessor: BaguaDistributedDataParallel) -> AlgorithmState | None:
        if predecessor._live_rounds().may_differ:
            predecessor.finish_round()
        if predecessor._first_algorithm != self._first_algorithm:
            return None
        if type(predecessor.bagua_algorithm) is not type(self.bagua_algorithm):
            return None
        state = predecessor._state()
        self.bagua_algorithm.load_state_dict(state.implementation)
        described = [(n, t.dtype, t.shape) for n, t in select(self.module).trainable]
        is_same = described == [(n, t.dtype, t.shape) for n, t in predecessor._selected.trainable]
        registered = runtime_algorithm(self.bagua_algorithm)
        fits = registered is not None and state.fits(registered, self.process_group.ranks)
        return state if is_same and fits else None

    def _adopt_implementation(self, state: AlgorithmState) -> None:
        try:
            self.bagua_algorithm.load_state_dict(state.implementation)
        except (KeyError, TypeError, ValueError) as error:
            kind = type(self.bagua_algorithm).__name__
            raise InvalidArgument(f"state: it is not that of {kind}: {error!r}") from None
        registered = runtime_algorithm(self.bagua_algorithm)
        if registered != state.algorithm:
            this = f"{registered.name} {registered.options}" if registered else "written in Python"
            raise InvalidArgument(
                f"state: it is that of {state.algorithm.name} {state.algorithm.options}, this is {this}"
            )

    def _register_again(self) -> None:
        """Ranks whose parameters may differ come back to rank 0's: the next algorithm's state must begin somewhere."""
        rounds, self._rounds = self._live_rounds(), None
        if rounds.may_differ:
            self._known = {}
        rounds.detach(self._session.timeout_s)
        self._selected = self._register(self.bagua_optimizers if rounds.may_differ else ())

    def _register(
        self, optimizers: Iterable[torch.optim.Optimizer], state: AlgorithmState | None = None
    ) -> SelectedTensors:
        """Agrees with the other ranks on the model, brings tensors that are new to rank 0's values, and installs
        the hooks.
        """
        communicator = self.process_group.get_global_communicator()
        selected: SelectedTensors | None = None
        complaint: PeltonError | None = None
        try:
            selected = select(self.module)
            self._check_unowned(selected.trainable)
        except PeltonError as error:
            complaint = error
        agree(communicator, complaint)
        assert selected is not None
        new = [(name, tensor) for name, tensor in selected.all if self._known.get(id(tensor)) is not tensor]
        self.bagua_module_name = broadcast_state(
            communicator, new, list(optimizers), selected.left_out, self.bagua_module_name
        )
        self._install(selected, state)
        return selected

    def _install(self, selected: SelectedTensors, state: AlgorithmState | None) -> None:
        algorithm = runtime_algorithm(self.bagua_algorithm)
        if algorithm is None:
            self._install_hooks(selected)
        else:
            self._rounds = self._make_rounds(selected, algorithm, state)
        self._live_rounds().set_synchronized(self._is_synchronized)
        self._known = {id(tensor): tensor for _, tensor in selected.all}
        self._snapshot = Snapshot(self.module, selected.frozen)

    def _install_hooks(self, selected: SelectedTensors) -> None:
        """An algorithm written in Python looks at this object while it is asked."""
        self._selected = selected
        self._rounds = user = UserAlgorithm(self, selected.trainable)
        try:
            user.build()
        except BaseException:
            self._rounds = None
            user.detach()
            raise

    def _make_rounds(
        self, selected: SelectedTensors, algorithm: RegisteredAlgorithm, state: AlgorithmState | None
    ) -> Rounds:
        registration = Registration(
            self._session,
            self.process_group.ranks,
            self.bagua_module_name,
            selected.trainable,
            self.bagua_optimizers,
            algorithm,
            self._flatten,
        )
        return make_rounds(registration, state)

    def _check_unowned(self, trainable: NamedTensors) -> None:
        """Two wrapped models would communicate a parameter of both twice."""
        for other in self._session.models():
            if not isinstance(other, BaguaDistributedDataParallel) or other is self or other._rounds is None:
                continue
            owned = {id(tensor): name for name, tensor in other._selected.trainable}
            for name, tensor in trainable:
                if id(tensor) in owned:
                    raise InvalidArgument(
                        f"parameter '{name}' is already communicated as '{owned[id(tensor)]}' of "
                        f"{other.bagua_module_name}; ignore it in one of the two"
                    )

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return nothing, ()


def _checked_optimizers(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    if isinstance(optimizers, torch.optim.Optimizer):
        raise InvalidArgument("optimizers: must be a list of optimizers, is a single one; write [optimizer]")
    checked = list(optimizers)
    for number, optimizer in enumerate(checked):
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument(f"optimizers[{number}]: must be an optimizer, is a {type(optimizer).__name__}")
    return checked


def _checked_algorithm(algorithm: Algorithm) -> Algorithm:
    if not isinstance(algorithm, Algorithm):
        raise InvalidArgument(f"algorithm: must be an Algorithm, is {algorithm!r}; see Algorithm.init(name)")
    return algorithm
