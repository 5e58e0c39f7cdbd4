"""The object behind a wrapped model: keeps all ranks at one state, and its gradients communicated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from pelton import _C
from pelton.errors import FailedPrecondition, InvalidArgument, PeltonError
from pelton.torch_api import _session, env
from pelton.torch_api._parameters import NamedTensors, SelectedTensors, Snapshot, names_without_optimizer, select
from pelton.torch_api._state_broadcast import agree, broadcast_state
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.communication import BaguaProcessGroup


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
        self._model: _C.Model | None = None
        self._known: dict[int, torch.Tensor] = {}
        self._session = _session.current()
        self._selected = self._register(self.bagua_optimizers)
        self._removers: list[Callable[[], None]] = [
            optimizer.register_step_pre_hook(lambda *_: self.finish_round()).remove
            for optimizer in self.bagua_optimizers
        ]
        _register_forward_hooks(module)
        self._session.add_model(self)

    def bagua_build_params(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters whose gradients are communicated, each once, in registration order."""
        return [(name, tensor) for name, tensor in self._selected.trainable if isinstance(tensor, nn.Parameter)]

    @property
    def bagua_buckets(self) -> list[Bucket]:
        """The buckets in the order in which they are communicated. Empty after `detach`."""
        if self._model is None:
            return []
        return [Bucket(f"bucket {i}", tuple(names)) for i, names in enumerate(self._model.buckets())]

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
        if self._model is not None:
            self._model.set_synchronized(enabled)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes within it only accumulate; the next one after it communicates the sum."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def statistics(self) -> dict[str, float]:
        """Counts since registration: rounds, wait_seconds, bytes, sent_bytes, copied_bytes, plan_generation."""
        return self._model.statistics() if self._model is not None else {}

    def before_forward(self) -> None:
        """Checks that every parameter is still registered (ALL-1), and registers anew what has changed.

        Raises:
          FailedPrecondition: the process group has ended.
          PeltonError: what an earlier round failed with; or the ranks disagree on what has changed.
        """
        if self._model is None:
            if self.module.training:
                raise FailedPrecondition(
                    f"{self.bagua_module_name} is not synchronised any more: {self._ended or 'its registration failed'}"
                )
            return
        self._model.check_round()
        if not self._snapshot.is_current() or self._model.check_parameters():
            self._register_again()
        if self.module.training:
            self.bagua_train_step_counter += 1

    def after_forward(self, output: Any) -> None:
        """Has the backward pass that starts at `output` complete the round when it ends.

        Args:
          output: what the model returned: tensors in tuples, lists, dicts or what else is registered as a pytree.
        """
        if self._model is None:
            return
        leaves = _pytree.tree_leaves(output)
        self._model.watch_outputs([leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.grad_fn])

    def finish_round(self) -> None:
        """Completes a round that a nested backward pass left open, where the loss was not made of the model's outputs.
        Called before each optimizer step.

        Raises:
          PeltonError: what the round failed with.
        """
        if self._model is not None:
            self._model.finish_round()

    def detach(self, reason: str = "the process group was destroyed") -> None:
        """Removes every hook; gradients that lie in buckets get memory of their own. Idempotent.

        Args:
          reason: what a later training step says it fails with.
        """
        model, self._model = self._model, None
        if model is not None:
            self._ended = reason
            model.detach()
        for remove in self._removers:
            remove()
        self._removers = []

    def _register_again(self) -> None:
        model, self._model = self._model, None
        assert model is not None
        model.detach()
        self._selected = self._register(())

    def _register(self, optimizers: Iterable[torch.optim.Optimizer]) -> SelectedTensors:
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
        self._install(selected)
        return selected

    def _install(self, selected: SelectedTensors) -> None:
        algorithm = self.bagua_algorithm.registered()
        if algorithm.needs_every_parameter_in_an_optimizer:
            missing = names_without_optimizer(selected.trainable, self.bagua_optimizers)
            if missing:
                raise InvalidArgument(f"{algorithm.name}: no optimizer steps {', '.join(missing)}")
        self._model = _C.Model(
            self._session.backend,
            self.process_group.ranks,
            self.bagua_module_name,
            selected.trainable,
            algorithm.name,
            algorithm.options,
            env.get_default_bucket_size(),
            self._flatten,
            self._session.timeout_s,
        )
        self._model.set_synchronized(self._is_synchronized)
        self._known = {id(tensor): tensor for _, tensor in selected.all}
        self._snapshot = Snapshot(self.module, selected.frozen)

    def _check_unowned(self, trainable: NamedTensors) -> None:
        """Two wrapped models would communicate a parameter of both twice."""
        for other in self._session.models():
            if not isinstance(other, BaguaDistributedDataParallel) or other is self or other._model is None:
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
        return _nothing, ()


def _nothing() -> None:
    """What a wrapped model's machinery becomes in a copy."""


def _before_forward(module: nn.Module, _inputs: object) -> None:
    """The hook on every wrapped module; a function of the module, so that copies of the model can carry it."""
    inner = module.__dict__.get("bagua_ddp")
    if inner is not None and torch.is_grad_enabled():
        inner.before_forward()


def _after_forward(module: nn.Module, _inputs: object, output: object) -> None:
    inner = module.__dict__.get("bagua_ddp")
    if inner is not None and torch.is_grad_enabled():
        inner.after_forward(output)


def _register_forward_hooks(module: nn.Module) -> None:
    if _before_forward not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(_before_forward)
        module.register_forward_hook(_after_forward)


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
