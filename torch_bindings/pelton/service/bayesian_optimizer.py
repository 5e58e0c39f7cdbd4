"""Bayesian search for good parameters, by scikit-optimize's Gaussian processes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Union

from pelton._extras import optional_module
from pelton.errors import InvalidArgument

__all__ = ["BayesianOptimizer", "BoolParam", "FloatParam", "IntParam"]

# Small spaces are exhausted soon; scikit-optimize then tries points at random, which is right, and warns each time.
_SEEN_BEFORE = "The objective has been evaluated at"


class IntParam:
    """A parameter that takes integers. Threads: the caller's. Owns: nothing."""

    def __init__(self, val: int, space_dimension: Sequence[int]) -> None:
        """Args:
        val: a value to begin with, for whoever declares it; the search does not look at it.
        space_dimension: the least and the greatest value.

        Raises:
          InvalidArgument: these are not two numbers in order, or `val` is not between them.
        """
        self.val = val
        self.space_dimension = _bounds(val, space_dimension)


class FloatParam:
    """A parameter that takes real numbers. Threads: the caller's. Owns: nothing."""

    def __init__(self, val: float, space_dimension: Sequence[float]) -> None:
        """Args and errors: as `IntParam`'s."""
        self.val = val
        self.space_dimension = _bounds(val, space_dimension)


class BoolParam:
    """A parameter that is true or false. Threads: the caller's. Owns: nothing."""

    def __init__(self, val: bool) -> None:
        """Args:
        val: as `IntParam`'s.
        """
        self.val = val
        self.space_dimension = (0, 1)


Param = Union[IntParam, FloatParam, BoolParam]


class BayesianOptimizer:
    """Proposes parameters and learns from their scores; higher is better.

    The same calls give the same proposals for the same `random_state`. From the time that `n_initial_points` scores are
    known each `tell` fits a Gaussian process.

    Threads: one at a time. Owns: the scores so far.
    """

    def __init__(
        self,
        param_declaration: Mapping[str, Param],
        n_initial_points: int = 20,
        initial_point_generator: str = "halton",
        random_state: int = 0,
    ) -> None:
        """Args:
        param_declaration: the parameters by name.
        n_initial_points: how many proposals come from the generator.
        initial_point_generator: one of scikit-optimize's: "halton", "hammersly", "lhs", "sobol", "grid", "random".
        random_state: the seed.

        Raises:
          ImportError: scikit-optimize is not installed; the text says how to.
          InvalidArgument: there are no parameters, or `n_initial_points` is not positive.
        """
        if not param_declaration:
            raise InvalidArgument("param_declaration={}: name at least one parameter to search for")
        if n_initial_points < 1:
            raise InvalidArgument(f"n_initial_points={n_initial_points}: must be positive")
        skopt = optional_module("skopt", "a BayesianOptimizer", "service")
        warnings.filterwarnings("ignore", message=_SEEN_BEFORE, category=UserWarning, module=r"skopt\.")
        self.param_declaration = dict(param_declaration)
        self._search: Any = skopt.Optimizer(
            [_dimension(skopt.space, name, param) for name, param in self.param_declaration.items()],
            n_initial_points=n_initial_points,
            initial_point_generator=initial_point_generator,
            random_state=random_state,
        )

    def ask(self) -> dict[str, Any]:
        """The parameters to try next; the same ones until the next `tell`."""
        point = self._search.ask()
        return {name: _value(param, x) for (name, param), x in zip(self.param_declaration.items(), point)}

    def tell(self, param_dict: Mapping[str, Any], score: float) -> None:
        """Says how good parameters are, whether they were proposed or not.

        Args:
          param_dict: a value for each parameter; other keys are ignored.
          score: higher is better.

        Raises:
          InvalidArgument: a parameter is missing or outside its bounds, or the score is not finite.
        """
        if not math.isfinite(score):
            raise InvalidArgument(f"score={score!r} of {dict(param_dict)}: must be finite")
        point = [_coordinate(name, param, param_dict) for name, param in self.param_declaration.items()]
        self._search.tell(point, -float(score))


def _bounds(val: float, space_dimension: Sequence[Any]) -> tuple[Any, Any]:
    bounds = tuple(space_dimension)
    if len(bounds) != 2 or not bounds[0] < bounds[1]:
        raise InvalidArgument(f"space_dimension={space_dimension!r}: must be the least and the greatest value")
    if not bounds[0] <= val <= bounds[1]:
        raise InvalidArgument(f"val={val!r}: must be between {bounds[0]!r} and {bounds[1]!r}")
    return bounds


def _dimension(space: Any, name: str, param: Param) -> Any:
    kind = space.Real if isinstance(param, FloatParam) else space.Integer
    return kind(*param.space_dimension, name=name)


def _value(param: Param, coordinate: Any) -> Any:
    """A coordinate as plain Python: numpy's numbers are no JSON."""
    if isinstance(param, BoolParam):
        return bool(coordinate)
    return float(coordinate) if isinstance(param, FloatParam) else int(coordinate)


def _coordinate(name: str, param: Param, values: Mapping[str, Any]) -> Any:
    if name not in values:
        raise InvalidArgument(f"param_dict={dict(values)}: lacks the parameter '{name}'")
    value, (least, greatest) = values[name], param.space_dimension
    if not least <= value <= greatest:
        raise InvalidArgument(f"parameter '{name}': {value!r} is not between {least!r} and {greatest!r}")
    return float(value) if isinstance(param, FloatParam) else int(value)
