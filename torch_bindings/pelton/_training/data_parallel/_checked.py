"""Checks what `with_bagua` is called with, and understands its short forms."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pelton._training._parameters import NamedTensors
from pelton._training.algorithms.base import Algorithm, GlobalAlgorithmRegistry
from pelton._training.communication import BaguaProcessGroup
from pelton.errors import FailedPrecondition, InvalidArgument


def checked_optimizers(optimizers: Iterable[Optimizer] | Optimizer) -> list[Optimizer]:
    """The optimizers as a list; a single one stands for itself.

    Raises:
      InvalidArgument: something else is among them.
    """
    if not isinstance(optimizers, (Optimizer, Iterable)):
        raise InvalidArgument(f"optimizers: must be an optimizer, or several, is a {type(optimizers).__name__}")
    checked = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    for number, optimizer in enumerate(checked):
        if not isinstance(optimizer, Optimizer):
            raise InvalidArgument(f"optimizers[{number}]: must be an optimizer, is a {type(optimizer).__name__}")
    return checked


def checked_algorithm(
    algorithm: Algorithm | str, optimizers: Sequence[Optimizer], options: Mapping[str, Any] | None = None
) -> Algorithm:
    """The algorithm; a name stands for it with its default options, or with those that are given.

    Args:
      algorithm: it, or its name.
      optimizers: of which an algorithm takes its own, if it asks for one.
      options: of the algorithm, where that is a name.

    Raises:
      InvalidArgument: it is neither, there is none of that name, or an option is not one of its.
    """
    if isinstance(algorithm, str):
        return _named(algorithm, optimizers, dict(options or {}))
    if not isinstance(algorithm, Algorithm):
        raise InvalidArgument(f"algorithm: must be an Algorithm or a name, is {algorithm!r}; see Algorithm.init(name)")
    if options:
        raise InvalidArgument(f"{', '.join(options)}: options go with an algorithm's name; {algorithm!r} has its own")
    return algorithm


def _named(name: str, optimizers: Sequence[Optimizer], options: dict[str, Any]) -> Algorithm:
    try:
        make = GlobalAlgorithmRegistry.get(name)
        known = inspect.signature(make).parameters
        _check_options(name, options, known)
        for option in known:
            if option.endswith("_optimizer") and option not in options:
                if len(optimizers) != 1:
                    raise InvalidArgument(
                        f"algorithm={name!r} steps the whole model with an optimizer of its own, and {len(optimizers)} "
                        f"are given: give that one alone, or say {option}= which it is"
                    )
                options[option] = optimizers[0]
        return make(**options)
    except (KeyError, TypeError) as error:
        raise InvalidArgument(f"algorithm={name!r}: {error.args[0]}") from None


def _check_options(name: str, options: Mapping[str, Any], known: Mapping[str, inspect.Parameter]) -> None:
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        return
    unknown = [option for option in options if option not in known]
    if unknown:
        word = "unknown option" if len(unknown) == 1 else "unknown options"
        raise InvalidArgument(
            f"algorithm={name!r}: {', '.join(unknown)}: {word}; there are: {', '.join(known) or 'none'}"
        )


def check_unowned(this: Any, trainable: NamedTensors) -> None:
    """Two wrapped models would communicate a parameter of both twice.

    Args:
      this: the object behind the model that is being wrapped.
      trainable: its parameters.

    Raises:
      InvalidArgument: one of them is another model's.
    """
    complaint = _owned(this, trainable)
    if complaint:
        gc.collect()  # a model that nobody holds any more refers to what wraps it, and waits for a collection
        complaint = _owned(this, trainable)
    if complaint:
        raise InvalidArgument(complaint)


def _owned(this: Any, trainable: NamedTensors) -> str:
    names = {id(tensor): name for name, tensor in trainable}
    for other, name, tensor in this._session.communicated_by_others(this):
        if id(tensor) in names:
            model = other.bagua_module_name
            return (
                f"parameter '{names[id(tensor)]}' is already communicated as '{name}' of {model}; ignore it in one "
                f"of the two, or end the wrapping of {model} on all ranks before, by its bagua_ddp.detach()"
            )
    return ""


def check_experts(module: nn.Module, process_group: BaguaProcessGroup) -> None:
    """Experts that fewer ranks share than the model is wrapped for have replicas that nobody would keep equal.

    Args:
      module: the model that is being wrapped.
      process_group: the ranks that it is wrapped for.

    Raises:
      InvalidArgument: a layer of experts has another group.
    """
    for name, layer in module.named_modules():
        if getattr(type(layer), "shares_experts", False) and layer.ranks != process_group.ranks:
            raise InvalidArgument(
                f"'{name or 'the model'}' shares its experts among ranks {layer.ranks}, but the model is wrapped for "
                f"ranks {process_group.ranks}: gradients of experts are summed over the layer's ranks alone. Give the "
                "layer (MoE's process_group, or `group` of a pickled one, which has lost it) and with_bagua the same "
                "group"
            )


def refuse_inputs(leaves: Iterable[Any], model: str) -> None:
    """Of a forward pass none of whose outputs a backward pass could be told by.

    Args:
      leaves: what the model returned.
      model: its name in errors.

    Raises:
      FailedPrecondition: one of them is the model's input itself, which a backward pass may start at all the same.
    """
    if not torch.is_grad_enabled():
        return
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and not isinstance(leaf, nn.Parameter):
            raise FailedPrecondition(
                f"{model}: the model returned its input itself, so that this rank would take no part in the round of "
                "the backward pass that comes, and be a step behind from then on. Return a tensor of its own, as "
                "x.view_as(x)"
            )
