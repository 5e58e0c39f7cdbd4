"""Finds parameters that an optimizer steps, but that no wrapped model has: each rank's own, and nobody says so. And
optimizers that step nothing of the model that they were given with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from pelton._training import _session
from pelton._training._parameters import parameter_ids


def strangers(optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    """The trainable ones, each once; none in a job of one rank.

    Those that a model has been told to leave out, and experts, are the model's.
    """
    session = _session.current() if _session.is_initialized() else None
    if session is None or session.backend.world_size == 1:
        return []
    known = {id(parameter) for model in session.models() for parameter in model.module.parameters()}
    found = {
        id(parameter): parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and id(parameter) not in known
    }
    return list(found.values())


def idle(given: Sequence[Optimizer], module: nn.Module) -> list[Optimizer]:
    """The optimizers that step none of a model's parameters, frozen ones included, although they were given with it.

    Where others of them do, those of another wrapped model do not count: scripts give the optimizers of several models
    with each one.
    """
    own = {id(parameter) for parameter in module.parameters()}
    without = [optimizer for optimizer in given if (held := parameter_ids(optimizer)) and own.isdisjoint(held)]
    if len(without) == len(given) or not _session.is_initialized():
        return without
    models = _session.current().models()
    known = {id(parameter) for model in models for parameter in model.module.parameters()}
    return [optimizer for optimizer in without if known.isdisjoint(parameter_ids(optimizer))]


def described(parameters: Sequence[torch.Tensor]) -> str:
    """How many, and what the first looks like: an optimizer need not know names."""
    shape = list(parameters[0].shape)
    return f"a parameter of shape {shape}" if len(parameters) == 1 else f"{len(parameters)} parameters (first {shape})"
