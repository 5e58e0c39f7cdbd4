"""`pelton.init` and `pelton.wrap`: the way in, typed, which changes no class of torch's.

What these functions need is imported when they are called, because it takes a second, and `import pelton` alone is
enough for torch.distributed's backend.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

if TYPE_CHECKING:
    import torch.distributed as dist

    from pelton._training.algorithms.base import Algorithm
    from pelton._training.communication import BaguaProcessGroup
    from pelton._training.data_parallel.bagua_distributed import BaguaDistributedDataParallel

_Module = TypeVar("_Module", bound=nn.Module)


def init(*, timeout: float | None = None, join_timeout: float | None = None) -> None:
    """Joins the job that `pelton run` or torchrun has started. Collective. See `pelton.torch_api.init_process_group`.

    Args:
      timeout: of each later operation; PELTON_TIMEOUT if None. Units: seconds.
      join_timeout: until all ranks have joined; PELTON_JOIN_TIMEOUT if None. Units: seconds.

    Raises:
      RepeatedInitializationError: called twice.
      DeadlineExceeded: ranks are missing; the text names them.
    """
    from pelton._training.communication import init_process_group

    init_process_group(timeout=timeout, join_timeout=join_timeout)


def autotune(
    model: nn.Module,
    *,
    csv: str | os.PathLike[str] | None = None,
    alternatives: Sequence[Algorithm | str] = (),
    schedules: bool = False,
) -> None:
    """Tunes the bucket size of a wrapped model while it is trained, from the next step on, for 60 steps at most.

    Rank 0 measures two rounds, computes what a round would take with buckets of other sizes, tries the best few, and
    takes one whose steps are faster than those with the size in force by more than the noise. All ranks change
    together. Weights are those of the untuned run, bit for bit, where a sum does not depend on its place in a bucket
    (see docs/autotune.md). BAGUA_AUTOTUNE=1 does the same for every model that can be tuned. Collective, between steps.

    Args:
      model: wrapped with `wrap`, `with_bagua` or `DistributedDataParallel`.
      csv: a file to which rank 0 adds a line for each size and each alternative that was tried, with Bagua's columns
        and `setup`, the alternative; None: one in the folder for temporary files, if BAGUA_IS_OUTPUT_AUTOTUNE_LOG is
        set.
      alternatives: algorithms of gradients that are as right as the one in force: another codec, or the same one with
        `hierarchical` the other way. They are tried first, for 60 steps and 6 more for each but the first; results are
        those of whichever is in force. Each keeps what it remembers from turn to turn. Checkpoints have the state of
        the algorithm that the model was wrapped with, as it was after its last turn, so that the same script loads
        them; loading one puts that algorithm in force again.
      schedules: whether a table of schedules, measured now for the sizes of the model's buckets, is tried beside the
        job's; of use where ranks are on several hosts. A sum over three hosts or more may differ in its last bit.

    Raises:
      InvalidArgument: the model is not wrapped; or an alternative is no algorithm, or the ranks' differ; or rank 0
        cannot write to the file.
      Unsupported: results of its algorithm depend on the buckets, or it has no rounds in backward passes, or its
        buckets are on a GPU; or an alternative has no rounds of gradients in backward passes; the text says which.
      FailedPrecondition: a round is open, on this rank or another; or an earlier call's alternatives are still tried.
      DeadlineExceeded: not all ranks have called.
    """
    wrapping_of(model).autotune(csv, alternatives, schedules)


def rank() -> int:
    """This process's number, as the launcher said."""
    from pelton._training import env

    return env.get_rank()


def world_size() -> int:
    """The number of ranks, as the launcher said."""
    from pelton._training import env

    return env.get_world_size()


def wrap(
    model: _Module,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    algorithm: str | Algorithm = "gradient_allreduce",
    *,
    process_group: BaguaProcessGroup | dist.ProcessGroup | None = None,
    **options: Any,
) -> _Module:
    """Trains a model together with the other ranks' from now on. Collective over the group. See `Module.with_bagua`.

    Args:
      model: the model.
      optimizers: what steps it, one or several.
      algorithm: a name of `GlobalAlgorithmRegistry`, or an algorithm.
      process_group: the ranks that take part; None for all. A group of torch's will do.
      **options: of the algorithm, where that is a name. One that asks for its own optimizer takes it of `optimizers`.

    Returns:
      The model itself.

    Raises:
      InvalidArgument: an argument cannot be served, or differs between ranks; the text names it.
      FailedPrecondition: `init` was not called.
    """
    from pelton._training.data_parallel._checked import checked_algorithm, checked_optimizers
    from pelton._training.data_parallel._wrap import wrap_module

    given = checked_optimizers(optimizers)
    return wrap_module(model, given, checked_algorithm(algorithm, given, options), process_group)


def wrapping_of(model: nn.Module) -> BaguaDistributedDataParallel:
    """What keeps a wrapped model's ranks together, with types, which a type checker cannot know of `model.no_sync`.

    Its `no_sync()`, `detach()`, `statistics()`, `consolidate()`, `stop_averaging()`, `resume_averaging()`,
    `algorithm_state_dict()` and `load_algorithm_state_dict()` are for users.

    Args:
      model: wrapped with `wrap`, `with_bagua` or `DistributedDataParallel`; a compiled one, too.

    Raises:
      InvalidArgument: the model is not wrapped.
    """
    from pelton._training.data_parallel.bagua_distributed import BaguaDistributedDataParallel
    from pelton.errors import InvalidArgument

    for name in ("bagua_ddp", "inner"):
        found = getattr(model, name, None)
        if isinstance(found, BaguaDistributedDataParallel):
            return found
    raise InvalidArgument(f"model: this {type(model).__name__} was not wrapped; pelton.wrap() does that")
