"""Errors that are BlueFog's and Pelton's in one."""

from __future__ import annotations

from pelton.errors import FailedPrecondition, InvalidArgument


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
