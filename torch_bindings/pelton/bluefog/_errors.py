"""Errors that are BlueFog's and Pelton's in one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pelton.errors import Aborted, DeadlineExceeded, FailedPrecondition, InvalidArgument, PeerLost

_COLLECTIVE = re.compile(r"^\w+ of group '[^']*'(?=: )")


class NotInitialized(FailedPrecondition, ValueError):
    """`bluefog.torch.init` was not called, or `shutdown` was called since."""


class WrongType(InvalidArgument, TypeError):
    """An argument is of another type than it must be."""


class NoMean(InvalidArgument, AssertionError):
    """A mean of whole numbers was asked for."""


class NoMachineTopology(FailedPrecondition, ValueError):
    """A hierarchical operation needs `set_machine_topology` first. A RuntimeError, as every error of Pelton's."""


class MovedTensor(FailedPrecondition, ValueError):
    """A window's tensor has other memory, or another shape or dtype, than `win_create` was given."""


class WindowsAlive(FailedPrecondition, ValueError):
    """`init` would set a topology while there are windows, which are made for the one in force."""


@contextmanager
def waits_named(call: str) -> Iterator[None]:
    """Within it, what ends a wait for other ranks names `call`, and not the collective that it is made of.

    Args:
      call: what the program has called.
    """
    try:
        yield
    except (Aborted, DeadlineExceeded, PeerLost) as error:
        raise type(error)(_COLLECTIVE.sub(call, str(error), count=1)) from None
