"""The object behind a wrapped model: keeps all ranks at one state, and its gradients communicated."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.utils import _pytree

from pelton import _C
from pelton._training import _before_writes, _session, env
from pelton._training._model_backend import ModelBackend
from pelton._training._parameters import SelectedTensors, Snapshot, check_gradients, select, thawed
from pelton._training._state_broadcast import agree, agreeing, broadcast_state, everyone
from pelton._training.algorithms.base import Algorithm, RegisteredAlgorithm
from pelton._training.communication import BaguaProcessGroup
from pelton._training.data_parallel._algorithm_state import AlgorithmState, OwnAlgorithm, state_left_by
from pelton._training.data_parallel._attachment import nothing, release
from pelton._training.data_parallel._checked import (
    check_experts,
    check_unowned,
    checked_algorithm,
    checked_optimizers,
    refuse_inputs,
)
from pelton._training.data_parallel._contest import Contest, begin_tuning, load_own_state
from pelton._training.data_parallel._ending import Ending
from pelton._training.data_parallel._equality import check_of
from pelton._training.data_parallel._functional import is_functional_call
from pelton._training.data_parallel._loaded_weights import LoadedWeights, settle_loaded
from pelton._training.data_parallel._local_gradients import Registered, keep_local, local_gradients
from pelton._training.data_parallel._make_rounds import Registration, make_rounds, model_steps
from pelton._training.data_parallel._rounds import Rounds
from pelton._training.data_parallel._scalers import ScalerAgreement
from pelton._training.data_parallel._steps import forget, is_in_backward, listen, unused_backwards
from pelton._training.data_parallel._together import consolidate, register_again
from pelton._training.data_parallel._torchs_ddp import check_around, check_within
from pelton._training.data_parallel._tuning import tuning_of_environment
from pelton._training.data_parallel._user_algorithm import UserAlgorithm, runtime_algorithm
from pelton.errors import FailedPrecondition, Unsupported


class BaguaDistributedDataParallel:
    """Keeps one model's ranks together. A copy of the model (deepcopy, pickle) is a plain model, without it.

    Threads: the trainer's; gradients become ready on autograd's threads without the GIL. Owns: the runtime's model
    with its hooks and buckets, and the hooks on the module and the optimizers.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Iterable[torch.optim.Optimizer] | torch.optim.Optimizer,
        algorithm: Algorithm | str,
        process_group: BaguaProcessGroup,
        bagua_module_name: str | None = None,
        gradient_as_bucket_view: bool = True,
        find_unused_parameters: bool = False,
        *,
        predecessor: BaguaDistributedDataParallel | None = None,
        bucket_bytes: int | None = None,
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
          bucket_bytes: size up to which tensors share a bucket; None: BAGUA_DEFAULT_BUCKET_SIZE says.

        Raises:
          InvalidArgument: the model or an argument cannot be served, or differs between ranks; the text names it.
          DeadlineExceeded, PeerLost: not all ranks took part.
        """
        self.module = module
        self.bagua_optimizers = checked_optimizers(optimizers)
        self.process_group = process_group
        self.bagua_algorithm = checked_algorithm(algorithm, self.bagua_optimizers).reify(process_group)
        self._own = OwnAlgorithm(self.bagua_algorithm)
        self.bagua_module_name = bagua_module_name or type(module).__name__
        self.bagua_train_step_counter = 0
        self.find_unused_parameters = find_unused_parameters
        self._flatten = gradient_as_bucket_view
        self._bucket_bytes = env.get_default_bucket_size() if bucket_bytes is None else bucket_bytes
        self._is_synchronized = True
        self._ending = Ending()
        self._rounds: Rounds | None = None
        # The latest, which may be detached: what comes after them takes over what they know of gradients.
        self._last: Registered | None = predecessor._last if predecessor is not None else None
        self._watch: _C.BackwardWatch | None = None
        self._backward_count = unused_backwards(predecessor)
        self._is_functional = False  # the forward pass that is under way
        self._first_algorithm = self._registered_as = runtime_algorithm(self.bagua_algorithm)
        self._known: dict[int, torch.Tensor] = {}
        self._session = _session.current()
        self._equality = check_of(self)
        self._loaded = LoadedWeights()
        self._tuning = tuning_of_environment(process_group.get_global_communicator())
        self._contest: Contest | None = None
        self._schedules = ""  # rows between hosts that go before the job's
        inherited = self._inherit(predecessor)
        self._selected = self._register(self.bagua_optimizers, inherited)
        listen(self)
        self._session.add_model(self)
        if self._tuning is not None and self._tuning.schedules:
            self._tuning.begin_schedules(self)

    def bagua_build_params(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters whose gradients are communicated, each once, in registration order. Last come frozen
        ones of which a rank had a gradient of its own (`no_sync`) when the model was registered anew.
        """
        return cast(list[tuple[str, nn.Parameter]], list(self._selected.trainable))

    @property
    def bagua_buckets(self) -> list[Any]:
        """The buckets in the order in which they are communicated: `Bucket`, or an algorithm's own `BaguaBucket`.
        Empty after `detach`.
        """
        return list(self._rounds.bagua_buckets) if self._rounds is not None else []

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
        """Counts since registration: rounds, wait_seconds, bytes, sent_bytes, copied_bytes, plan_generation; and
        bucket_size_bytes, the size up to which tensors share a bucket now.
        """
        return self._rounds.statistics() if self._rounds is not None else {}

    def flat_buckets(self) -> list[tuple[torch.Tensor, list[tuple[str, int]]]]:
        """The memory in which gradients lie one after the other, by bucket, and the first element of each parameter's;
        of use until the buckets change, and nothing where gradients lie by themselves.
        """
        return self._rounds.flat_buckets() if self._rounds is not None else []

    def autotune(
        self,
        csv: str | os.PathLike[str] | None = None,
        alternatives: Sequence[Algorithm | str] = (),
        schedules: bool = False,
    ) -> None:
        """See `pelton.autotune`."""
        begin_tuning(self, csv, alternatives, schedules)

    @property
    def is_tuning(self) -> bool:
        """Whether the bucket size, or anything else, is being tuned."""
        return self._contest is not None or (self._rounds is not None and self._rounds.is_tuning)

    def algorithm_state_dict(self) -> dict[str, Any]:
        """What the algorithm remembers on this rank: residuals, peers' weights, momenta, counts; plain containers and
        copies of tensors. Each rank has a state of its own. Where a delayed round is under way, it waits for its
        results and tells them, too.

        The algorithm is the one that the model was wrapped with, also while `pelton.autotune` tries another one or has
        taken one: it is told as it was when its last turn ended, or anew if parameters came, went or changed since.

        Raises:
          FailedPrecondition: another kind of round is under way, or the process group has ended.
        """
        return self._own.state(self).to_dict()

    def load_algorithm_state_dict(self, state_dict: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Goes on from what `algorithm_state_dict` told on this rank of a group of the same size, or on all ranks of
        one of any size. Collective.

        Weights and the optimizers' state are not part of it: load them too, before it and after wrapping, since that
        brings all ranks to rank 0's. The algorithm that the model was wrapped with is in force again: alternatives
        that `pelton.autotune` is trying are tried anew from here, one that it has taken is left.

        Args:
          state_dict: the dictionary; or the list of all ranks', in rank order. From another number of ranks what is
            common stays, what error feedback holds back keeps its mean over the ranks, servers' parts move to the
            ranks that serve those elements now, and neighbours' weights are those that all ranks have loaded.

        Raises:
          InvalidArgument: it is malformed, or of another rank, algorithm or model; from another number of ranks also:
            the ranks hold different weights. The text says which. Raised on all ranks.
          FailedPrecondition: the process group has ended.
        """
        load_own_state(self, state_dict)

    def before_load(self) -> None:
        """`load_state_dict` of the model is about to write to its weights, which concerns what remembers weights."""
        _before_writes.settle()
        if self._rounds is not None and self._rounds.remembers_weights:
            self._loaded.come(self._selected.trainable)

    def note_use(self) -> None:
        """The model is about to be called, in any mode, or saved."""
        self._loaded.use()

    def before_forward(self, inputs: Any = ()) -> None:
        """Checks that every parameter is still registered (ALL-1), and registers anew what has changed; in training
        tells the algorithm. A functional call, with the caller's tensors in the parameters' place, is left alone.

        Args:
          inputs: the module's positional arguments.

        Raises:
          FailedPrecondition: the process group has ended, or torch's DistributedDataParallel averages here, too.
          PeltonError: what an earlier round failed with; or the ranks disagree on what has changed.
        """
        if self._rounds is None:
            if self.module.training:
                self._live_rounds()
            return
        is_current = self._snapshot.is_current()
        self._is_functional = not is_current and is_functional_call(self.module)
        if self._is_functional:
            return
        check_around(self._selected.trainable, self._registered_as, self.bagua_module_name)
        self._settle()
        self._rounds.check()
        # Before a new registration, which has other tensors or other values.
        loading = self._loaded.take(self._selected.trainable) if self.module.training else None
        if not is_current or self._rounds.changes():
            register_again(self)
        if loading is None:
            self._live_rounds().before_evaluation()
            return
        settle_loaded(self, loading)
        self.bagua_train_step_counter += 1
        if self._is_synchronized and self.bagua_algorithm.need_reset():
            register_again(self)
        self._live_rounds().before_forward(inputs)

    def after_forward(self, output: Any) -> None:
        """Has the backward pass that starts at `output` complete the round when it ends.

        Args:
          output: what the model returned: tensors in tuples, lists, dicts or what else is registered as a pytree.

        Raises:
          FailedPrecondition: it is the model's input itself, which no backward pass could be told by.
        """
        if self._rounds is None or self._watch is None or self._is_functional:
            return
        leaves = _pytree.tree_leaves(output)
        outputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.grad_fn]
        if not outputs and self._is_synchronized and self._rounds.needs_backward:
            refuse_inputs(leaves, self.bagua_module_name)
        self._watch.watch_outputs(outputs)
        self._rounds.after_forward(outputs, self.module.training)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Listener`."""
        self._check_gradients(optimizer)
        if not self._concerns(optimizer):
            return
        if is_in_backward():
            self._steps.refuse_within_backward(optimizer, self._live_rounds().may_differ)
            return
        self._settle()
        self._steps.before(optimizer, self.module)
        rounds = self._live_rounds()
        if self._is_synchronized and rounds.needs_backward:
            self._steps.check_source(optimizer, self._backward_count, lambda: int(rounds.statistics().get("rounds", 0)))
        rounds.before_step(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Listener`."""
        if self._rounds is None or is_in_backward() or not self._concerns(optimizer):
            return
        self._steps.after(optimizer)
        self._finish_step(self._rounds.after_step(optimizer))

    def before_scaled_step(self, scaler: Any, optimizer: Any) -> None:
        """See `Listener`: ranks that must stay equal skip a step together, or none does."""
        if self._rounds is None or not self._is_synchronized or is_in_backward():
            return
        if self._rounds.weights_are_equal and not self._rounds.may_differ:
            self._scalers.before_step(scaler, optimizer)

    def step_skipped(self, optimizer: Any) -> None:
        """See `Listener`: what counts the steps of the given optimizers counts this one, too."""
        for given in self._steps.given_behind(optimizer) if self._rounds is not None else ():
            self._steps.after(given)
            self._finish_step(self._live_rounds().step_skipped(given))

    def _finish_step(self, completes: bool) -> None:
        if not self._is_synchronized:
            return
        if completes:
            self.bagua_algorithm.step_is_complete()
            if self._equality is not None:
                parameters = self._selected.trainable + self._selected.frozen
                self._equality.step_ended(parameters, self.weights_are_equal, self._steps.unknown)
        if self.bagua_algorithm.phase_is_over() and self.bagua_algorithm.need_reset():
            register_again(self)
        if completes and self._contest is not None:
            self._contest_step(self._contest)

    def _contest_step(self, contest: Contest) -> None:
        """The buckets are tuned once the rest is."""
        contest.step_ended(self)
        if contest.is_over:
            self._contest = None
            if self._tuning is not None:
                self._tuning.begin(self)

    def finish_round(self) -> int:
        """Completes the round that is open, if one is: one that a nested backward pass left open, where the loss was
        not made of the model's outputs, or one of weights; the number of its buckets. Collective then.

        Raises:
          PeltonError: what the round failed with.
        """
        return self._rounds.finish() if self._rounds is not None else 0

    def register_ordered_buckets(self, buckets: Sequence[Any]) -> None:
        """See `ModelBackend`."""
        if self._rounds is None or self._rounds.chooses_buckets:
            raise FailedPrecondition(
                f"{self.bagua_module_name} is kept together by an algorithm of the runtime, which chooses its buckets"
            )
        self._rounds.register_ordered_buckets(buckets)

    def consolidate(self) -> None:
        """Brings the ranks together at the end of training: where the algorithm lets weights differ, a delayed round
        is merged, and weights and floating point buffers become their mean, other buffers rank 0's. Averaging beside
        training is stopped; else training may go on. Collective.

        Raises:
          PeltonError: the process group has ended; or what the communication failed with.
        """
        consolidate(self)

    def stop_averaging(self) -> None:
        """Ends an averaging beside training when all ranks have asked for it; without one it does nothing.

        Raises:
          DeadlineExceeded: not all ranks have asked in time.
        """
        if self._rounds is not None:
            self._rounds.stop()

    def resume_averaging(self) -> None:
        """Goes on with an averaging that was stopped; without one it does nothing."""
        if self._rounds is not None:
            self._rounds.resume()

    def detach(self, reason: str = "it was detached", timeout_s: float = 10.0, *, keeps_watch: bool = False) -> None:
        """Makes the module a plain one again; gradients that lie in buckets get memory of their own. Idempotent.

        Args:
          reason: what a later call of this object says it fails with.
          timeout_s: how long to wait for the other ranks to end an averaging beside training. Units: seconds.
          keeps_watch: the hooks on forward passes stay, so that training on is an error that tells the reason.
        """
        rounds, self._rounds = self._rounds, None
        if rounds is not None:
            self._ending.end(reason)
            rounds.detach(timeout_s)
        if self._watch is not None:
            self._watch.detach()
        if not keeps_watch:
            self._last = None
            forget(self)
            release(self.module, self)

    def make_way(self, successor: BaguaDistributedDataParallel) -> None:
        """Another object keeps the model together now: steps do not concern this one, which somebody may still hold."""
        self._last = None
        self._ending.make_way(successor._ending)
        forget(self)

    @property
    def _bagua_backend(self) -> ModelBackend:
        return ModelBackend(self)

    @property
    def weights_are_equal(self) -> bool:
        """Whether the algorithm says that all ranks hold the same weights now, after a step."""
        return self._rounds is not None and self._rounds.weights_are_equal

    def _concerns(self, optimizer: torch.optim.Optimizer) -> bool:
        return self._steps.is_given(optimizer) or bool(self._steps.parameter_of(optimizer))

    def _backward_began(self) -> None:
        if self._rounds is None or not self._is_synchronized:
            return
        if self.bagua_algorithm.phase_is_over():
            raise FailedPrecondition(
                f"{self.bagua_module_name}: the optimizer has gone on to another phase of its algorithm since the last "
                "step (a state was loaded?), but no forward pass in training mode has been since. Call the model in "
                "training mode once, on all ranks, before the backward pass"
            )
        if self._rounds.weights_are_equal and not self._rounds.may_differ:
            self._steps.backward_began()
        self._rounds.backward_began()

    def _backward_ended(self, may_go_on: bool) -> None:
        self._backward_count += 1
        if self._rounds is None:
            return
        self._rounds.backward_ended(may_go_on)
        self._steps.backward_ended(self._is_synchronized)
        self._check_gradients()

    def _check_gradients(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        if self._rounds is not None and self._is_synchronized and not self._snapshot.is_current():
            check_gradients(self.module, self._selected, self.bagua_module_name, optimizer)

    def _settle(self) -> None:
        if self._watch is not None:
            self._watch.settle()

    def _live_rounds(self) -> Rounds:
        if self._rounds is None:
            raise FailedPrecondition(f"{self.bagua_module_name} is not synchronised any more: {self._ending.words()}")
        return self._rounds

    def _state(self) -> AlgorithmState:
        rounds = self._live_rounds()
        rank = self.process_group.get_global_communicator().rank()
        registered, implementation = runtime_algorithm(self.bagua_algorithm), self.bagua_algorithm.state_dict()
        if registered is None:
            kind = type(self.bagua_algorithm).__name__
            raise Unsupported(f"{kind} is written in Python: what it remembers is its own, and not kept by the runtime")
        return AlgorithmState(registered, self.process_group.ranks, rank, implementation, rounds.steps, rounds.state())

    def _inherit(self, predecessor: BaguaDistributedDataParallel | None) -> AlgorithmState | None:
        """The predecessor's state if this one can go on from it, on all ranks alike."""
        state, complaint = None, None
        if predecessor is not None:
            state, complaint = state_left_by(predecessor, self)
            predecessor.detach("it was wrapped again, which failed", self._session.timeout_s, keeps_watch=True)
        communicator = self.process_group.get_global_communicator()
        agree(communicator, complaint)
        return state if everyone(communicator, state is not None) else None

    def _register(
        self, optimizers: Iterable[torch.optim.Optimizer], state: AlgorithmState | None = None
    ) -> SelectedTensors:
        """Agrees with the other ranks on the model, brings tensors that are new to rank 0's values, and installs
        the hooks.
        """
        _before_writes.settle()
        communicator = self.process_group.get_global_communicator()
        with agreeing(communicator):
            selected = select(self.module)
            check_unowned(self, selected.trainable)
            check_within(self.module, selected.trainable, runtime_algorithm(self.bagua_algorithm))
            check_experts(self.module, self.process_group)
        self._session.dropped.end_stopped()
        self._session.dropped.end_those_of((tensor for _, tensor in selected.trainable), self._session.timeout_s)
        new = [(name, tensor) for name, tensor in selected.all if self._known.get(id(tensor)) is not tensor]
        self.bagua_module_name = broadcast_state(
            communicator, new, list(optimizers), selected.left_out, self.bagua_module_name
        )
        selected = keep_local(self, selected)
        self._install(selected, state)
        return selected

    def _install(self, selected: SelectedTensors, state: AlgorithmState | None) -> None:
        algorithm = self._registered_as = runtime_algorithm(self.bagua_algorithm)
        local = local_gradients(selected.trainable, self.process_group, self._last)
        with thawed(selected.trainable):
            self._hear(selected, algorithm)
            if algorithm is None:
                self._install_hooks(selected)
            else:
                self._rounds = self._make_rounds(selected, algorithm, state)
        if algorithm is not None and self._tuning is not None and self._contest is None:
            self._tuning.begin(self)
        rounds = self._live_rounds()
        rounds.set_synchronized(self._is_synchronized)
        if self._last is not None:
            rounds.take_over(self._last.rounds)
            self._steps.take_over(self._last.steps)
        rounds.mark_local(local)
        self._last = Registered(self.process_group, selected, rounds, self._steps)
        self._known = {id(tensor): tensor for _, tensor in selected.all}
        self._snapshot = Snapshot(self.module, selected.frozen)

    def _reinstall(self, state: AlgorithmState | None) -> None:
        """Registers the same tensors anew."""
        rounds, self._rounds = self._live_rounds(), None
        rounds.detach(self._session.timeout_s)
        self._install(self._selected, state)

    def _hear(self, selected: SelectedTensors, algorithm: RegisteredAlgorithm | None) -> None:
        """Before the rounds' own hooks are there, so that what hears of a gradient first decides what they do."""
        this = weakref.ref(self)
        if self._watch is not None:
            self._watch.detach()
        self._watch = _C.BackwardWatch(
            [tensor for _, tensor in selected.trainable],
            functools.partial(_backward_began, this),
            _before_writes.settle,  # also before this rank's round ends, after which an heir could not repeat it
            functools.partial(_backward_ended, this),
        )
        self._steps = model_steps(self.bagua_module_name, selected, self.bagua_optimizers, algorithm)
        communicator = self.process_group.get_global_communicator()
        self._scalers = ScalerAgreement(self.bagua_module_name, communicator, selected)

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
            self._bucket_bytes,
            self._schedules,
        )
        return make_rounds(registration, state)

    def __del__(self) -> None:
        """Nobody holds the model any more: what averages it beside training must not end on this rank alone."""
        rounds, selected = (self.__dict__.get(name) for name in ("_rounds", "_selected"))  # where making it has failed
        if rounds is not None and selected is not None and rounds.is_averaging and not sys.is_finalizing():
            self._session.dropped.add(rounds, selected.trainable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bagua_module_name}, {type(self.bagua_algorithm).__name__})"

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return nothing, ()


@_disable_dynamo
def _backward_began(this: weakref.ref[BaguaDistributedDataParallel]) -> None:
    inner = this()
    if inner is not None:
        inner._backward_began()


@_disable_dynamo
def _backward_ended(this: weakref.ref[BaguaDistributedDataParallel], may_go_on: bool) -> None:
    inner = this()
    if inner is not None:
        inner._backward_ended(may_go_on)
