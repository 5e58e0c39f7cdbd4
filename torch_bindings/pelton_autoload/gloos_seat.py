"""PELTON_REPLACE_GLOO=1: process groups that ask torch.distributed for gloo run on Pelton.

The backend keeps gloo's name, because scripts and libraries compare names. What Pelton does not offer stays gloo's
own: tensors that are not on the CPU.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import pelton_autoload

NAME = "gloo"
_gloo: Any = None  # PyTorch's own class, once its seat is taken
_requests = threading.local()
_told: set[str] = set()


def take() -> None:
    """Takes the seat in this process. Idempotent."""
    global _gloo
    if _gloo is not None or not dist.is_gloo_available():
        return
    _gloo = c10d.ProcessGroupGloo
    module: Any = c10d
    module.ProcessGroupGloo = _Seat
    module._new_process_group_helper = _with_request(module._new_process_group_helper)


class _Request:
    """One call that makes a process group. Threads: its own. Owns: nothing."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        config = c10d.BackendConfig(arguments["backend"])
        self.devices = [device for device, name in config.get_device_backend_map().items() if name == NAME]
        self.is_open = "cpu" in self.devices

    def take(self) -> bool:
        """Whether what is made now is the group's backend: later ones only watch over it, or are another device's."""
        is_first, self.is_open = self.is_open, False
        return is_first


class _SeatType(type):
    """Answers as PyTorch's own class does. Threads: any. Owns: nothing."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _gloo) or (_is_pelton(instance) and _name_of(instance) == NAME)

    def __getattr__(cls, name: str) -> Any:
        return getattr(_gloo, name)


class _Seat(metaclass=_SeatType):
    """What torch.distributed takes for ProcessGroupGloo. Threads: any. Owns: nothing."""

    def __new__(cls, store: Any, rank: int, size: int, *args: Any, **options: Any) -> Any:
        request = getattr(_requests, "current", None)
        if request is None or args or set(options) != {"timeout"} or not request.take():
            return _gloo(store, rank, size, *args, **options)
        return _create(store, rank, size, options["timeout"], request.arguments)


def _create(store: Any, rank: int, size: int, timeout: Any, arguments: dict[str, Any]) -> Any:
    try:
        from pelton.distributed._process_group import create
    except ImportError as error:  # the same on all ranks that have the same packages
        _tell(rank, "pelton cannot be loaded (%s): process groups that ask for gloo run on gloo", error)
        return _gloo(store, rank, size, timeout=timeout)
    options: Any = c10d._DistributedBackendOptions()  # type: ignore[attr-defined]
    options.store, options.group_rank, options.group_size, options.timeout = store, rank, size, timeout
    options.group_id = arguments["group_name"]
    options.global_ranks_in_group = arguments["global_ranks_in_group"]
    _tell(rank, "PELTON_REPLACE_GLOO=1: process groups that ask for gloo run on Pelton")
    return create(options, None, NAME)


def _tell(rank: int, text: str, *values: object) -> None:
    """One line in all, on the rank that is 0 in the first group."""
    if text in _told:
        return
    _told.add(text)
    if rank == 0 and not pelton_autoload.is_on("PELTON_QUIET"):
        logging.getLogger("pelton").warning(text, *values)


def _with_request(make_group: Any) -> Any:
    """torch.distributed's function that makes every group, with its arguments at hand for what it calls."""
    signature = inspect.signature(make_group)

    @functools.wraps(make_group)
    def make(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        request = _Request(bound.arguments)
        outer, _requests.current = getattr(_requests, "current", None), request
        try:
            group, store = make_group(*args, **kwargs)
        finally:
            _requests.current = outer
        if request.devices != ["cpu"] and "cpu" in request.devices and torch.accelerator.is_available():
            _leave_devices_to_gloo(group, store, request)
        return group, store

    return make


def _leave_devices_to_gloo(group: Any, store: Any, request: _Request) -> None:
    """Gloo carries tensors of other devices by way of the host; Pelton's backend has those of the CPU only.

    A process group has one backend per kind, and gloo's is taken: this one is registered as another kind.
    """
    if not isinstance(group, c10d.ProcessGroup):
        return  # this rank is not a member
    for device in request.devices:
        if device != "cpu":
            own = c10d.PrefixStore(f"pelton/{device}/", store)
            backend = _gloo(own, group.rank(), group.size(), timeout=request.arguments["timeout"])
            group._register_backend(torch.device(device), c10d.ProcessGroup.BackendType.CUSTOM, backend)


def _is_pelton(instance: object) -> bool:
    return type(instance).__module__.startswith("pelton.")


def _name_of(instance: Any) -> str:
    return str(instance.name())
