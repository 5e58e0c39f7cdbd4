"""Marks functions as cases, and finds them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[[], None])


@dataclass(frozen=True)
class Case:
    """One function to be run on every rank. Threads: a value. Owns: nothing."""

    name: str
    function: Callable[[], None]
    world_sizes: tuple[int, ...]

    @property
    def id(self) -> str:
        """Name and module, unique in a job."""
        return f"{self.function.__module__}.{self.name}"


class NotRun(Exception):
    """Raised by a case, on all ranks, that this machine cannot run; the text says why."""


_cases: dict[str, list[Case]] = {}


def case(*world_sizes: int) -> Callable[[Function], Function]:
    """Registers a function for jobs of these sizes. It fails by raising, on any rank."""

    def register(function: Function) -> Function:
        entry = Case(function.__name__, function, world_sizes or (2,))
        _cases.setdefault(function.__module__, []).append(entry)
        return function

    return register


def cases_of(module: str) -> list[Case]:
    """The cases of a module, in the order in which they stand there."""
    importlib.import_module(module)
    return _cases[module]
