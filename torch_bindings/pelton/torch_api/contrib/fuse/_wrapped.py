"""Where the gradients of wrapped models lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pelton._training import _session


@dataclass
class FlatBucket:
    """Gradients that are communicated together, one after the other. Threads: a value. Owns: nothing."""

    gradients: torch.Tensor  # all of them, flat
    members: list[torch.Tensor]  # the parameters, in the order of their gradients
    begins: list[int]  # of each one's gradient, in elements


@dataclass
class WrappedParameters:
    """Those of all wrapped models of the process. Threads: a value. Owns: nothing."""

    flat_ones: set[int] = field(default_factory=set)  # ids of those whose gradients lie in flat buckets
    single_ones: set[int] = field(default_factory=set)  # ids of the others
    buckets: list[FlatBucket] = field(default_factory=list)  # of flat ones, where it is known how they lie


def wrapped_parameters(ids: set[int]) -> WrappedParameters:
    """What is wrapped now.

    Args:
      ids: of the parameters that matter: models that have none of them are left out.
    """
    found = WrappedParameters()
    models: Sequence[Any] = list(_session.current().models()) if _session.is_initialized() else ()
    for model in models:
        named = dict(model.bagua_build_params())
        mine = {id(parameter) for parameter in named.values()}
        if ids.isdisjoint(mine):
            continue
        if not model._flatten:
            found.single_ones |= mine
            continue
        found.flat_ones |= mine
        for gradients, slots in model.flat_buckets():
            members = [(named[name], begin) for name, begin in slots if name in named]
            found.buckets.append(FlatBucket(gradients, [p for p, _ in members], [begin for _, begin in members]))
    return found
