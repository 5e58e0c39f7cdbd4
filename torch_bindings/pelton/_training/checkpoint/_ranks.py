"""The ranks that save and load together, and what of a model is wrapped."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from torch import nn

from pelton._training import _session, communication
from pelton._training._objects import broadcast_object
from pelton._training._state_broadcast import agreeing, everyone
from pelton._training.data_parallel._attachment import wrapping_of
from pelton.errors import FailedPrecondition, PeltonError, ResourceExhausted

Result = TypeVar("Result")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def wrapped_parts(model: nn.Module) -> dict[str, Any]:
    """The objects behind a model's wrapped parts, by the parts' names; the model's own is "" or "module"."""
    if not _session.is_initialized():
        return {}
    found = {name: wrapping_of(part) for name, part in model.named_modules()}
    return {name: inner for name, inner in found.items() if inner is not None and inner._rounds is not None}


class Ranks:
    """Those of a wrapped model's group, else all; this process alone where there is no job.

    Threads: the trainer's. Owns: nothing.
    """

    def __init__(self, wrapped: dict[str, Any]) -> None:
        """Args:
        wrapped: see `wrapped_parts`; of several groups all ranks of the job take part.
        """
        self.communicator: Any = None
        self.rank, self.size = 0, 1
        if _session.is_initialized():
            groups = [inner.process_group for inner in wrapped.values()]
            is_one = bool(groups) and all(group.ranks == groups[0].ranks for group in groups)
            group = groups[0] if is_one else communication._get_default_group()
            self.communicator = group.get_global_communicator()
            self.rank, self.size = self.communicator.rank(), self.communicator.nranks()

    def together(self, function: Callable[[], Result]) -> Result:
        """What a function returns here, once it has returned on all ranks. Collective.

        Raises:
          Exception: what it raised here.
          InvalidArgument: it raised something elsewhere; the text begins with that rank's number.
        """
        with agreeing(self.communicator) if self.size > 1 else contextlib.nullcontext():
            try:
                return function()
            except PeltonError:
                raise
            except OSError as error:
                raise _explained(error) from None

    def by_first(self, function: Callable[[], Result]) -> Result:
        """What a function returns on rank 0, which alone calls it; plain values. Collective.

        Raises:
          PeltonError: as `together`.
        """
        result: Any = self.together(function if self.rank == 0 else lambda: None)
        return cast(Result, broadcast_object(result, 0, self.communicator) if self.size > 1 else result)

    def all_say(self, flag: bool) -> bool:
        """Whether all ranks say yes. Collective."""
        return everyone(self.communicator, flag) if self.size > 1 else flag


def _explained(error: OSError) -> PeltonError:
    kind = ResourceExhausted if error.errno in _FULL else FailedPrecondition
    return kind(f"{error}. The last complete checkpoint is as it was")


@contextlib.contextmanager
def paused(wrapped: dict[str, Any]) -> Iterator[None]:
    """Averaging beside training touches no weights within it; what was stopped before it is so after. Collective."""
    running = [name for name, inner in wrapped.items() if _is_averaging(inner)]
    for name in running:
        wrapped[name].stop_averaging()
    try:
        yield
    finally:
        for name in running:
            with contextlib.suppress(PeltonError):  # of a lost rank the block's own error tells
                wrapped[name].resume_averaging()
    for name, inner in wrapped.items():
        if name not in running and _is_averaging(inner):  # a state that was loaded has registered it anew
            inner._rounds.stay_stopped()


def _is_averaging(inner: Any) -> bool:
    return inner._rounds is not None and inner._rounds.is_averaging
