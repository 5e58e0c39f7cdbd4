"""What an algorithm is to Python: a name and options of an algorithm of the runtime, or hooks that do the work."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from pelton import _C
from pelton._training.algorithms._options import checked_texts, defaults_of, kept, text_of, value_of
from pelton.errors import InvalidArgument, Unsupported

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


@dataclass(frozen=True, eq=False)
class RegisteredAlgorithm:
    """One of the runtime's algorithms (`pelton._C.algorithms()` lists them). Equal to another if the runtime does the
    same for both, whether or not they name options that have their defaults. Threads: a value. Owns: its options.
    """

    name: str
    options: dict[str, str] = field(default_factory=dict)
    needs_every_parameter_in_an_optimizer: bool = False
    # The optimizer that must step every parameter, because its state is what is communicated.
    stepped_by: torch.optim.Optimizer | None = None
    # Where it communicates momenta: a parameter's, with how much of it a new gradient leaves.
    moment_of: Callable[[torch.Tensor], tuple[torch.Tensor, float]] | None = None
    # Where it communicates what an optimizer accumulates, when that asks for it.
    exchange: OptimizerExchange | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RegisteredAlgorithm):
            return NotImplemented
        return self.name == other.name and self._beside_defaults() == other._beside_defaults()

    __hash__ = None  # type: ignore[assignment]

    def _beside_defaults(self) -> dict[str, str]:
        usual = defaults_of(self.name) if self.name in dict(_C.algorithms()) else {}
        return {name: value for name, value in self.options.items() if value != usual.get(name)}

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
    """One of the runtime's algorithms, with options of its table, which `pelton algorithms NAME` lists; None leaves an
    option at its default. Threads: a value. Owns: its options.
    """

    runtime_name = ""  # the runtime's name of it
    needs_every_parameter_in_an_optimizer = False

    def __init__(self, name: str, /, **options: Any) -> None:
        """Args:
        name: what `pelton._C.algorithms()` calls it.
        **options: its own; a graph may be a networkx.DiGraph over the ranks.

        Raises:
          InvalidArgument: an option is unknown, or its value does not fit; the text lists what there is.
        """
        self.runtime_name = name
        self.options = options
        self.texts()

    def options_in(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The runtime's options among an object's attributes: this one's, or those of what it is at work."""
        return dict(attributes["options"])

    def texts(self) -> dict[str, str]:
        """Its options as the runtime takes them, as they are now.

        Raises:
          InvalidArgument: one has been changed to what does not fit.
        """
        return checked_texts(self.runtime_name, self.options_in(vars(self)))

    def text_of(self, option: str) -> str:
        """An option's value, or its default."""
        return self.texts().get(option) or defaults_of(self.runtime_name)[option]

    def reify(self, process_group: BaguaProcessGroup) -> AlgorithmImpl:
        """Puts it to work on a group."""
        return RuntimeImpl(process_group, self)

    def __repr__(self) -> str:
        """The class, the name and the options."""
        return f"{type(self).__name__}(name={self.runtime_name!r}, options={self.options!r})"


class NamedAlgorithm(RuntimeAlgorithm):
    """The base of classes that are names over an algorithm of the runtime's: a class says which, and what of its
    arguments is Python's own; all others go to the runtime. They are attributes, as those of Bagua's classes.
    """

    own_arguments: tuple[str, ...] = ()  # of its signature, which the runtime's table has not
    _names: tuple[str, ...] = ()  # what was given to it as the runtime's, whether or not that knows it
    impl_class: type[RuntimeImpl]  # what it becomes at work; see RuntimeImpl

    def __getattr__(self, name: str) -> Any:
        """An option of the runtime's that was not given has its default; None where that is no value of its own."""
        default = defaults_of(type(self).runtime_name).get(name)
        if default is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return value_of(default)

    def __init__(self, **options: Any) -> None:
        """Args:
        **options: of the runtime's algorithm.

        Raises:
          InvalidArgument: as `RuntimeAlgorithm`.
        """
        self._names = tuple(options)
        vars(self).update(options)
        try:
            self.texts()
        except InvalidArgument as error:
            if not self.own_arguments or "is unknown" not in str(error):
                raise
            raise InvalidArgument(f"{error}; and of {type(self).__name__}: {', '.join(self.own_arguments)}") from None

    def options_in(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """See `RuntimeAlgorithm`."""
        known = {*self._names, *defaults_of(self.runtime_name)}
        return {name: value for name, value in attributes.items() if name in known}

    def reify(self, process_group: BaguaProcessGroup) -> RuntimeImpl:
        """Puts it to work on a group."""
        return self.impl_class(process_group, self)

    def __repr__(self) -> str:
        """The class and what differs from its defaults; of an optimizer its class."""
        parameters = inspect.signature(type(self)).parameters
        usual = {name: text_of(parameters[name].default) for name in self.own_arguments if name in parameters}
        usual.update(defaults_of(self.runtime_name))
        shown = {n: v for n, v in vars(self).items() if not n.startswith("_") and v is not None}
        kinds = {n: type(v).__name__ if isinstance(v, torch.optim.Optimizer) else repr(v) for n, v in shown.items()}
        differing = [f"{name}={kinds[name]}" for name, value in shown.items() if text_of(value) != usual.get(name)]
        return f"{type(self).__name__}({', '.join(differing)})"


class RuntimeImpl(AlgorithmImpl):
    """One of the runtime's algorithms at work on a group. Its attributes are those of the algorithm, as they were when
    it was put to work; a subclass may set others.

    `class XImpl(RuntimeImpl, of=X)` is what the class X becomes at work, and takes the group and X's arguments.
    Threads: the trainer's. Owns: its options.
    """

    algorithm_class: type[NamedAlgorithm]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls, of: type[NamedAlgorithm] | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if of is not None:
            cls.algorithm_class, of.impl_class = of, cls
            cls.__init__ = _with_arguments_of(of, cls.__init__)  # type: ignore[method-assign]

    def __init__(self, process_group: BaguaProcessGroup, *arguments: Any, **options: Any) -> None:
        """Args:
        process_group: the ranks that take part.
        *arguments: the algorithm; or those that its class is made of.
        **options: as well.
        """
        super().__init__(process_group)
        is_made = len(arguments) == 1 and isinstance(arguments[0], RuntimeAlgorithm)
        self._algorithm = arguments[0] if is_made else self.algorithm_class(*arguments, **options)
        for name, value in vars(self._algorithm).items():
            if not name.startswith("_") and name not in vars(self) and not hasattr(type(self), name):
                setattr(self, name, kept(value))
        self._texts()

    @property
    def runtime_name(self) -> str:
        """The runtime's name of it, in a warm-up as well."""
        return self._algorithm.runtime_name

    def registered(self) -> RegisteredAlgorithm:
        """The algorithm of the runtime's."""
        algorithm = self._algorithm
        return RegisteredAlgorithm(
            algorithm.runtime_name, self._texts(), algorithm.needs_every_parameter_in_an_optimizer
        )

    def _texts(self) -> dict[str, str]:
        return checked_texts(self._algorithm.runtime_name, self._algorithm.options_in(vars(self)))


def _with_arguments_of(algorithm: type[Algorithm], init: Callable[..., None]) -> Callable[..., None]:
    """The method, with the signature that it has by the class of the algorithm."""

    @functools.wraps(init)
    def made(self: RuntimeImpl, process_group: BaguaProcessGroup, *arguments: Any, **options: Any) -> None:
        init(self, process_group, *arguments, **options)

    first, *others = inspect.signature(algorithm.__init__).parameters.values()
    group = inspect.Parameter("process_group", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    made.__signature__ = inspect.Signature([first, group, *others])  # type: ignore[attr-defined]
    return made


class WarmUpImpl(RuntimeImpl):
    """Gradient allreduce in the algorithm's first `warmup_steps` steps, then the algorithm.

    Threads: the trainer's. Owns: its options and its phase.
    """

    def __init__(self, process_group: BaguaProcessGroup, *arguments: Any, **options: Any) -> None:
        """Args:
        process_group: the ranks that take part.
        *arguments: as those of `RuntimeImpl`.
        **options: as well.
        """
        super().__init__(process_group, *arguments, **options)
        self.step_id = 0
        self._is_warm = self.warmup_steps == 0

    def step_is_complete(self) -> None:
        """Counts it."""
        self.step_id += 1

    def phase_is_over(self) -> bool:
        """Whether the warm-up's last step has been taken."""
        return bool(self._is_warm != (self.step_id >= self.warmup_steps))

    def need_reset(self) -> bool:
        """True once, after the warm-up's last step."""
        is_over = self.phase_is_over()
        self._is_warm = self.step_id >= self.warmup_steps
        return is_over

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `gradient_allreduce` in the warm-up, then the algorithm."""
        after = super().registered()
        return after if self._is_warm else replace(after, name="gradient_allreduce", options={"average": "true"})

    def state_dict(self) -> dict[str, Any]:
        """How far the warm-up is."""
        return {"step_id": self.step_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from where `state_dict` was."""
        self.step_id = int(
            state["steps"] if "steps" in state else state["step_id"]
        )  # the former: once post_local_sgd's
        self._is_warm = self.step_id >= self.warmup_steps


class AlgorithmRegistry:
    """Algorithms by name. Threads: written while modules are imported. Owns: its entries."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Callable[..., Algorithm], str]] = {}

    def register(self, name: str, algorithm: Callable[..., Algorithm], description: str = "") -> None:
        """Adds an algorithm.

        Args:
          name: what `Algorithm.init` finds it by.
          algorithm: makes it from its options, usually its class.
          description: one line for lists; where there is none, that of the runtime's algorithm which it stands for.

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
        make, description = self._entries.get(name) or (self.get(name), "")
        return make, description or dict(_C.algorithms()).get(getattr(make, "runtime_name", name), "")

    def available_algorithms(self) -> list[str]:
        """The names, sorted: those that were registered here, and the runtime's."""
        return sorted({*self._entries, *dict(_C.algorithms())})

    def __str__(self) -> str:
        return "\n".join(f"{name}: {self.entry(name)[1]}" for name in self.available_algorithms())


GlobalAlgorithmRegistry = AlgorithmRegistry()
