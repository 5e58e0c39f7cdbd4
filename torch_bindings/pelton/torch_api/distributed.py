"""What every `torch.nn.Module` can do once `pelton.torch_api` is imported: `with_bagua` and what goes with it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from pelton.errors import InvalidArgument
from pelton.torch_api import _session, communication
from pelton.torch_api.algorithms.base import Algorithm, AlgorithmImpl
from pelton.torch_api.data_parallel.bagua_distributed import BaguaDistributedDataParallel, Bucket

if TYPE_CHECKING:
    from pelton.torch_api.communication import BaguaProcessGroup

_Module = TypeVar("_Module", bound=nn.Module)
_numbers = itertools.count()


class _Settable(property):
    """A property that can be called with a module and a value, which is what its signature tells of setting it.

    Threads: as property. Owns: nothing.
    """

    def __call__(self, module: nn.Module, name: str) -> None:
        """Sets it."""
        self.__set__(module, name)


class BaguaModule:
    """The methods that modules get; never instantiated.

    Threads: the trainer's. Owns: nothing; a wrapped module keeps its machinery in its attribute `bagua_ddp`.
    """

    bagua_ddp: BaguaDistributedDataParallel | None

    @property
    def bagua_module_name(self) -> str:
        """The model's name in errors and statistics; after wrapping that of rank 0.

        Class name and a number unless set.
        """
        if "_bagua_module_name" not in self.__dict__:
            self.__dict__["_bagua_module_name"] = f"{type(self).__name__}_{next(_numbers)}"
        return cast(str, self.__dict__["_bagua_module_name"])

    @bagua_module_name.setter
    def bagua_module_name(self, name: str) -> None:
        self.__dict__["_bagua_module_name"] = name

    @property
    def bagua_algorithm(self) -> AlgorithmImpl:
        """The algorithm at work on this model."""
        return _inner(self).bagua_algorithm

    @property
    def bagua_optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers given to `with_bagua`."""
        return _inner(self).bagua_optimizers

    @property
    def bagua_buckets(self) -> list[Bucket]:
        """The buckets in the order in which they are communicated."""
        return _inner(self).bagua_buckets

    @property
    def no_sync(self) -> Callable[[], AbstractContextManager[None]]:
        """`with model.no_sync():` backward passes only accumulate; the next one after it communicates the sum."""
        return _inner(self).no_sync

    def with_bagua(  # type: ignore[misc]
        self: _Module,
        optimizers: Iterable[torch.optim.Optimizer],
        algorithm: Algorithm,
        process_group: BaguaProcessGroup | dist.ProcessGroup | None = None,
        do_flatten: bool = True,
    ) -> _Module:
        """Trains this model together with the other ranks' from now on. Collective over the group.

        Parameters, buffers and the optimizers' state become those of rank 0; gradients are communicated while
        backward passes run, and are complete when `backward()` returns. Keys of `state_dict` stay as they are. Called
        again, it ends the old wrapping and begins anew, for instance with another algorithm.

        Args:
          optimizers: what steps the model.
          algorithm: how it is kept together with the others.
          process_group: the ranks that take part, this one among them; None for all. A group of torch's will do.
          do_flatten: gradients may lie one after the other in the buckets; if not, each is communicated by itself.

        Returns:
          The module itself.

        Raises:
          InvalidArgument: the model or an argument cannot be served, or differs between ranks; the text names it.
          FailedPrecondition: the process group is not initialised.
          DeadlineExceeded, PeerLost: not all ranks took part.
        """
        group = _checked_group(process_group)
        inner = BaguaDistributedDataParallel(
            self,
            optimizers,
            algorithm,
            group,
            bagua_module_name=cast(BaguaModule, self).bagua_module_name,
            gradient_as_bucket_view=do_flatten,
            predecessor=self.__dict__.get("bagua_ddp"),
        )
        self.__dict__["bagua_ddp"] = inner
        cast(BaguaModule, self).bagua_module_name = inner.bagua_module_name
        return self


def bagua_init(
    model: _Module, optimizer: torch.optim.Optimizer, algorithm: Algorithm | None = None
) -> tuple[_Module, torch.optim.Optimizer]:
    """The form of 2021 of `with_bagua`.

    Args:
      model: the model.
      optimizer: what steps it.
      algorithm: how it is kept together with the other ranks'; None for gradient allreduce.

    Returns:
      The same two objects.

    Raises:
      As `with_bagua`.
    """
    cast(Any, model).with_bagua([optimizer], algorithm or Algorithm.init("gradient_allreduce"))
    return model, optimizer


def _checked_group(group: BaguaProcessGroup | dist.ProcessGroup | None) -> BaguaProcessGroup:
    if group is None:
        return communication._get_default_group()
    if isinstance(group, dist.ProcessGroup):
        group = communication.from_torch_group(group)
    if not isinstance(group, communication.BaguaProcessGroup):
        raise InvalidArgument(f"process_group: must be a BaguaProcessGroup or None, is {group!r}")
    rank = _session.current().backend.rank
    if rank not in group.ranks:
        raise InvalidArgument(f"process_group: this rank, {rank}, is not one of its ranks {group.ranks}")
    return group


def _inner(module: BaguaModule) -> BaguaDistributedDataParallel:
    inner = module.__dict__.get("bagua_ddp")
    if inner is None:
        raise AttributeError(f"{type(module).__name__} was not wrapped with with_bagua")
    return cast(BaguaDistributedDataParallel, inner)


setattr(BaguaModule, "__id_iter", _numbers)  # a class body would mangle the name
_named: Any = BaguaModule.__dict__["bagua_module_name"]
_bagua_module: Any = BaguaModule
_bagua_module.bagua_module_name = _Settable(_named.fget, _named.fset, None, _named.__doc__)
for _name in (
    "bagua_module_name",
    "bagua_algorithm",
    "bagua_optimizers",
    "bagua_buckets",
    "no_sync",
    "with_bagua",
):
    setattr(nn.Module, _name, BaguaModule.__dict__[_name])
