"""What every `torch.nn.Module` can do once `pelton.torch_api` is imported: `with_bagua` and what goes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from pelton._training.algorithms.base import Algorithm, AlgorithmImpl
from pelton._training.data_parallel._attachment import module_numbers
from pelton._training.data_parallel._rounds import Bucket
from pelton._training.data_parallel._wrap import wrap_module
from pelton._training.data_parallel.bagua_distributed import BaguaDistributedDataParallel

if TYPE_CHECKING:
    from pelton._training.communication import BaguaProcessGroup

_Module = TypeVar("_Module", bound=nn.Module)


class _OfWrapped:
    """An attribute that a wrapped module has, on the class that names it. Threads: a value. Owns: nothing."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, module: nn.Module | None, owner: type | None = None) -> Any:
        if module is None:
            return self
        try:
            return module.__dict__[self.name]
        except KeyError:  # nn.Module says which attribute of which class is missing
            raise AttributeError(self.name) from None


class _ModuleName(_OfWrapped):
    """`BaguaModule.bagua_module_name(module, name)` names a module before it is wrapped, as an assignment to the
    module's attribute does. Threads: the trainer's. Owns: nothing.
    """

    def __set__(self, module: nn.Module, name: str) -> None:
        module.__dict__[self.name] = name

    def __call__(self, module: nn.Module, name: str) -> None:
        self.__set__(module, name)


def _of_wrapped() -> Any:
    return _OfWrapped()


class BaguaModule:
    """What wrapping gives to a module; never instantiated.

    `torch.nn.Module` itself gets nothing but the function `with_bagua`: whatever reads all attributes of a module
    (torch.compile), or compiles its properties (TorchScript), must find a plain class. The other names below are set
    on the module that is wrapped, and taken away by `bagua_ddp.detach()`; copies of it do not have them.
    Threads: the trainer's. Owns: nothing.
    """

    bagua_ddp: BaguaDistributedDataParallel = _of_wrapped()  # the object behind the model
    # In errors and statistics; after wrapping that of rank 0; class and number unless set.
    bagua_module_name: Any = _ModuleName()
    bagua_algorithm: AlgorithmImpl = _of_wrapped()  # at work on the model
    bagua_optimizers: list[torch.optim.Optimizer] = _of_wrapped()  # those given to `with_bagua`
    bagua_buckets: Sequence[Bucket] = _of_wrapped()  # in the order in which they are communicated now
    no_sync: Callable[[], AbstractContextManager[None]]  # backward passes within it only accumulate

    def with_bagua(  # type: ignore[misc]
        self: _Module,
        optimizers: Iterable[torch.optim.Optimizer] | torch.optim.Optimizer,
        algorithm: Algorithm | str,
        process_group: BaguaProcessGroup | dist.ProcessGroup | None = None,
        do_flatten: bool = True,
    ) -> _Module:
        """Trains this model together with the other ranks' from now on. Collective over the group.

        Parameters, buffers and the optimizers' state become those of rank 0; gradients are communicated while
        backward passes run, and are complete when `backward()` returns. Keys of `state_dict` stay as they are. Called
        again, it ends the old wrapping and begins anew, for instance with another algorithm.

        Args:
          optimizers: what steps the model; one stands for a list of it.
          algorithm: how it is kept together with the others; a name stands for it with its default options.
          process_group: the ranks that take part, this one among them; None for all. A group of torch's will do.
          do_flatten: gradients may lie one after the other in the buckets; if not, each is communicated by itself.

        Returns:
          The module itself.

        Raises:
          InvalidArgument: the model or an argument cannot be served, or differs between ranks; the text names it.
          FailedPrecondition: the process group is not initialised.
          DeadlineExceeded, PeerLost: not all ranks took part.
        """
        return wrap_module(self, optimizers, algorithm, process_group, do_flatten)


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
      PeltonError: as `with_bagua`.
    """
    cast(Any, model).with_bagua([optimizer], algorithm or Algorithm.init("gradient_allreduce"))
    return model, optimizer


setattr(BaguaModule, "__id_iter", module_numbers)  # under the name in Bagua's text, not as Python would mangle it


def install() -> None:
    """Puts `with_bagua` on every module, as `import pelton.torch_api` does. Idempotent."""
    nn.Module.with_bagua = BaguaModule.with_bagua  # type: ignore[attr-defined]
