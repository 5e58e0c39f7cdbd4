"""What an algorithm is to Python: a name and options of an algorithm of the runtime, or hooks that do the work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from pelton import _C
from pelton._training.algorithms._options import to_text
from pelton.errors import Unsupported

if TYPE_CHECKING:
    from pelton._training.bucket import BaguaBucket
    from pelton._training.communication import BaguaProcessGroup
    from pelton._training.data_parallel.bagua_distributed import BaguaDistributedDataParallel
    from pelton._training.tensor import BaguaTensor


@dataclass(frozen=True)
class OptimizerExchange:
    """An optimizer that asks for rounds within its step. Threads: a value. Owns: nothing."""

    optimizer: Any  # its attribute `exchange` is what it calls
    accumulated_of: Callable[[torch.Tensor], torch.Tensor]  # what is communicated then, by parameter
    needs_gradients: Callable[[], bool]  # whether the next step's must be the ranks' mean


@dataclass(frozen=True)
class RegisteredAlgorithm:
    """One of the runtime's algorithms (`pelton._C.algorithms()` lists them). Threads: a value. Owns: its options."""

    name: str
    options: dict[str, str] = field(default_factory=dict)
    needs_every_parameter_in_an_optimizer: bool = field(default=False, compare=False)
    # The optimizer that must step every parameter, because its state is what is communicated.
    stepped_by: torch.optim.Optimizer | None = field(default=None, compare=False)
    # Where it communicates momenta: a parameter's, with how much of it a new gradient leaves.
    moment_of: Callable[[torch.Tensor], tuple[torch.Tensor, float]] | None = field(default=None, compare=False)
    # Where it communicates what an optimizer accumulates, when that asks for it.
    exchange: OptimizerExchange | None = field(default=None, compare=False)

    @property
    def runs_apart(self) -> bool:
        """Whether ranks may take unequal numbers of rounds, because a round is no affair of ranks outside it."""
        return self.options.get("peer_selection_mode") == "avoid_stragglers"


class AlgorithmImpl:
    """An algorithm at work on one process group: either `registered` names one of the runtime's, or the hooks do it.

    Threads: the trainer's. Owns: nothing.
    """

    def __init__(self, process_group: BaguaProcessGroup) -> None:
        """Args:
        process_group: the ranks that take part.
        """
        self.process_group = process_group

    def registered(self) -> RegisteredAlgorithm | None:
        """The runtime's algorithm that does the work, with its options; None where the hooks below do it."""
        return None

    def need_reset(self) -> bool:
        """Whether everything below, or `registered`, is to be asked again: for algorithms of several phases. Called
        before each forward pass in training mode that is not inside `no_sync`, on all ranks alike.
        """
        return False

    def step_is_complete(self) -> None:
        """Called when all optimizers that were given have stepped, outside `no_sync`; where none was given, after the
        step of any of the model's. For algorithms of the runtime whose phase goes by that: see `phase_is_over`.
        """

    def phase_is_over(self) -> bool:
        """Whether `need_reset` would say so now. Asked after each step, and at the first gradient of a backward pass,
        which no forward pass need have announced. Changes nothing.
        """
        return False

    def init_tensors(self, bagua_ddp: BaguaDistributedDataParallel) -> list[BaguaTensor]:
        """The tensors that are communicated: by default the gradients, last parameter first.

        Args:
          bagua_ddp: what keeps the model's ranks together.

        Returns:
          Registered tensors (`ensure_bagua_tensor`), in the order in which they are likely to become ready.
        """
        parameters: list[Any] = list(reversed(bagua_ddp.bagua_build_params()))
        self._communication_tensor_names = {name for name, _ in parameters}
        return [
            parameter.bagua_ensure_grad().ensure_bagua_tensor(
                name, bagua_ddp.bagua_module_name, getter_closure=_gradient, setter_closure=_set_gradient
            )
            for name, parameter in parameters
        ]

    def tensors_to_buckets(self, tensors: list[list[BaguaTensor]], do_flatten: bool) -> list[BaguaBucket]:
        """The buckets: by default those that are suggested.

        Args:
          tensors: the tensors of each bucket, as Pelton suggests them.
          do_flatten: whether a bucket's tensors are to lie one after the other in memory.
        """
        from pelton._training.bucket import BaguaBucket  # which imports what wraps models

        return [BaguaBucket(group, name=str(i), flatten=do_flatten) for i, group in enumerate(tensors)]

    def init_forward_pre_hook(self, bagua_ddp: BaguaDistributedDataParallel) -> Callable[[Any], None]:
        """Makes what is called with the model's inputs before each forward pass in training mode; by default nothing.

        Args:
          bagua_ddp: what keeps the model's ranks together.
        """
        return _nothing

    def init_backward_hook(self, bagua_ddp: BaguaDistributedDataParallel) -> Callable[[str, Any], None]:
        """Makes what is called with a parameter's name and the parameter when its gradient is final; by default it
        marks the parameter ready.

        Args:
          bagua_ddp: what keeps the model's ranks together.
        """

        def hook(parameter_name: str, parameter: Any) -> None:
            if parameter_name in self._communication_tensor_names:
                parameter.bagua_mark_communication_ready()

        return hook

    def init_post_backward_hook(self, bagua_ddp: BaguaDistributedDataParallel) -> Callable[[], None]:
        """Makes what is called when the backward pass is done; by default it waits for communication.

        Args:
          bagua_ddp: what keeps the model's ranks together.
        """

        def hook() -> None:
            bagua_ddp._bagua_backend.wait_pending_comm_ops()

        return hook

    def init_post_optimizer_step_hook(
        self, bagua_ddp: BaguaDistributedDataParallel
    ) -> Callable[[torch.optim.Optimizer], None]:
        """Makes what is called with an optimizer after its step; by default nothing.

        Args:
          bagua_ddp: what keeps the model's ranks together.
        """
        return _nothing

    def init_operations(self, bagua_ddp: BaguaDistributedDataParallel, bucket: BaguaBucket) -> None:
        """Appends the bucket's operations. An algorithm whose hooks do the work must override it.

        Args:
          bagua_ddp: what keeps the model's ranks together.
          bucket: one of the buckets.
        """

    def state_dict(self) -> dict[str, Any]:
        """What it remembers beside the runtime's state, as plain values: its phase, for instance."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` told.

        Args:
          state: the dictionary.

        Raises:
          KeyError: something is missing.
        """


def _gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    return parameter.grad


def _set_gradient(parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
    parameter.grad = gradient


def _nothing(_argument: object) -> None:
    """A hook that does nothing."""


class Algorithm:
    """An algorithm with its options, not yet tied to a process group. Threads: a value. Owns: its options."""

    def reify(self, process_group: BaguaProcessGroup) -> AlgorithmImpl:
        """Puts the algorithm to work on a group.

        Raises:
          Unsupported: the class does not say how, or an option is not offered.
        """
        raise Unsupported(f"{type(self).__name__} does not override `reify`")

    @classmethod
    def init(cls, name: str, **kwargs: Any) -> Algorithm:
        """Makes the algorithm registered under `name`.

        Args:
          name: one of `GlobalAlgorithmRegistry.available_algorithms()`.
          **kwargs: its options.

        Raises:
          KeyError: there is no such algorithm; the text lists the names.
        """
        return GlobalAlgorithmRegistry.get(name)(**kwargs)

    def __repr__(self) -> str:
        """The class and its options; of an optimizer its class."""
        given = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        kinds = {n: type(v).__name__ if isinstance(v, torch.optim.Optimizer) else repr(v) for n, v in given.items()}
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in kinds.items())})"


class RuntimeAlgorithm(Algorithm):
    """One of the runtime's algorithms that has no class of its own in Python. Threads: a value. Owns: its options."""

    def __init__(self, name: str, **options: Any) -> None:
        """Args:
        name: what `pelton._C.algorithms()` calls it.
        **options: its own; a graph may be a networkx.DiGraph over the ranks.
        """
        self.name = name
        self.options = options

    def reify(self, process_group: BaguaProcessGroup) -> AlgorithmImpl:
        """Puts it to work on a group; wrapping checks the options."""
        return _RuntimeImpl(process_group, self.name, to_text(**self.options))


class _RuntimeImpl(AlgorithmImpl):
    """Threads: the trainer's. Owns: its options."""

    def __init__(self, process_group: BaguaProcessGroup, name: str, options: dict[str, str]) -> None:
        super().__init__(process_group)
        self._registered = RegisteredAlgorithm(name, options)

    def registered(self) -> RegisteredAlgorithm:
        """What was named."""
        return self._registered


class AlgorithmRegistry:
    """Algorithms by name. Threads: written while modules are imported. Owns: its entries."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Callable[..., Algorithm], str]] = {}

    def register(self, name: str, algorithm: Callable[..., Algorithm], description: str = "") -> None:
        """Adds an algorithm.

        Args:
          name: what `Algorithm.init` finds it by.
          algorithm: makes it from its options, usually its class.
          description: one line for lists.

        Raises:
          ValueError: the name is taken.
        """
        if name in self._entries:
            raise ValueError(f"algorithm {name!r} is registered already")
        self._entries[name] = (algorithm, description)

    def get(self, name: str) -> Callable[..., Algorithm]:
        """What makes the algorithm `name`.

        Raises:
          KeyError: there is none; the text lists the names.
        """
        if name in self._entries:
            return self._entries[name][0]
        if name in dict(_C.algorithms()):
            return functools.partial(RuntimeAlgorithm, name)
        raise KeyError(f"no algorithm {name!r}; there are: {', '.join(self.available_algorithms())}")

    def entry(self, name: str) -> tuple[Callable[..., Algorithm], str]:
        """What makes the algorithm `name`, and a line about it.

        Raises:
          KeyError: there is none; the text lists the names.
        """
        known = self._entries.get(name)
        return known if known is not None else (self.get(name), dict(_C.algorithms())[name])

    def available_algorithms(self) -> list[str]:
        """The names, sorted: those that were registered here, and the runtime's."""
        return sorted({*self._entries, *dict(_C.algorithms())})

    def __str__(self) -> str:
        return "\n".join(f"{name}: {self.entry(name)[1]}" for name in self.available_algorithms())


GlobalAlgorithmRegistry = AlgorithmRegistry()
