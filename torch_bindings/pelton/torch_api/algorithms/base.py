"""What an algorithm is to Python: a name and options of an algorithm of the runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from pelton.errors import Unsupported

if TYPE_CHECKING:
    from pelton.torch_api.communication import BaguaProcessGroup


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
    needs_every_parameter_in_an_optimizer: bool = False
    # Where it communicates momenta: a parameter's, with how much of it a new gradient leaves.
    moment_of: Callable[[torch.Tensor], tuple[torch.Tensor, float]] | None = field(default=None, compare=False)
    # Where it communicates what an optimizer accumulates, when that asks for it.
    exchange: OptimizerExchange | None = field(default=None, compare=False)


class AlgorithmImpl:
    """An algorithm at work on one process group. Threads: the trainer's. Owns: nothing."""

    def __init__(self, process_group: BaguaProcessGroup) -> None:
        """Args:
        process_group: the ranks that take part.
        """
        self.process_group = process_group

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's algorithm that does the work, with its options.

        Raises:
          Unsupported: the class does not say; algorithms whose stages are written in Python are not offered yet.
        """
        raise Unsupported(f"{type(self).__name__} names no algorithm of the runtime (override `registered`)")

    def need_reset(self) -> bool:
        """Whether `registered` names another algorithm from now on, for algorithms of several phases. Asked before each
        forward pass in training mode that is not inside `no_sync`, on all ranks alike.
        """
        return False

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
        if name not in self._entries:
            raise KeyError(f"no algorithm {name!r}; there are: {', '.join(self.available_algorithms())}")
        return self._entries[name][0]

    def available_algorithms(self) -> list[str]:
        """The names, sorted."""
        return sorted(self._entries)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {self._entries[name][1]}" for name in self.available_algorithms())


GlobalAlgorithmRegistry = AlgorithmRegistry()
