"""What a wrapped module carries, all of it on the instance: hooks on its forward passes, and the names of Bagua's API.

Neither a copy of the module nor what pickles carry has any of it: they are plain models.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn
from torch._compile import _disable_dynamo

from pelton._training._torch_plans import watch_plans

if TYPE_CHECKING:
    from pelton._training.data_parallel.bagua_distributed import BaguaDistributedDataParallel

_NAME = "bagua_module_name"
_ATTRIBUTES = ("bagua_ddp", _NAME, "bagua_algorithm", "bagua_optimizers", "bagua_buckets", "no_sync", "__getstate__")
module_numbers = itertools.count()  # of the modules that nobody has named


def name_of(module: nn.Module) -> str:
    """The module's name in errors and statistics: what was set, else its class and a number."""
    name = module.__dict__.get(_NAME)
    return str(name) if name is not None else f"{type(module).__name__}_{next(module_numbers)}"


def wrapping_of(module: nn.Module) -> BaguaDistributedDataParallel | None:
    """What keeps the module's ranks together; None: it is not wrapped."""
    inner: BaguaDistributedDataParallel | None = module.__dict__.get("bagua_ddp")
    return inner


def attach(module: nn.Module, inner: BaguaDistributedDataParallel) -> None:
    """Puts everything on a module that has just been wrapped, in the place of an earlier wrapping's."""
    predecessor = wrapping_of(module)
    if predecessor is not None:
        release(module, predecessor)
        predecessor.make_way(inner)
    # By the class, because a scripted module, which calls its hooks, refuses the same as methods.
    pre_hook = nn.Module.register_forward_pre_hook(module, _before_forward)
    hook = nn.Module.register_forward_hook(module, _after_forward)
    load_hook = nn.Module._register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]
        module, _before_load, with_module=True
    )
    save_hook = nn.Module.register_state_dict_pre_hook(module, _before_save)  # type: ignore[no-untyped-call]
    module.__dict__.update(
        {
            "bagua_ddp": inner,
            _NAME: inner.bagua_module_name,
            "bagua_algorithm": inner.bagua_algorithm,
            "bagua_optimizers": inner.bagua_optimizers,
            "bagua_buckets": _Buckets(inner),
            "no_sync": _NoSync(inner),
            "__getstate__": _PlainState(module, (pre_hook.id, hook.id, load_hook.id, save_hook.id)),
        }
    )
    _show_forward(module)


def show_algorithm(module: nn.Module, inner: BaguaDistributedDataParallel) -> None:
    """Another algorithm is in force. A module that is not wrapped by `inner`, or not yet, is left alone."""
    if wrapping_of(module) is inner:
        module.__dict__["bagua_algorithm"] = inner.bagua_algorithm


def release(module: nn.Module, inner: BaguaDistributedDataParallel) -> None:
    """Takes everything away again, unless the module has been wrapped anew since. Idempotent."""
    if wrapping_of(module) is not inner:
        return
    for hooks, ours in (
        (module._forward_pre_hooks, _before_forward),
        (module._forward_hooks, _after_forward),
        (module._state_dict_pre_hooks, _before_save),
    ):
        for key in [key for key, hook in hooks.items() if hook is ours]:
            del hooks[key]
    loading = module._load_state_dict_pre_hooks
    for key in [key for key, hook in loading.items() if getattr(hook, "hook", hook) is _before_load]:
        del loading[key]
    for name in _ATTRIBUTES:
        module.__dict__.pop(name, None)
    if _shows_forward(module):
        del module.__dict__["forward"]


def _show_forward(module: nn.Module) -> None:
    """Lets torch.compile begin behind the hooks, which have no place in a graph because `after_forward` needs outputs
    that autograd knows. It begins at a module's `forward`; but with the whole call, hooks included, where `forward` is
    a function of torch's own, as that of nn.Sequential is.
    """
    torchs = _torchs_forward(module)
    if torchs is not None and "forward" not in module.__dict__:
        module.__dict__["forward"] = MethodType(_shown(torchs), module)


def _shows_forward(module: nn.Module) -> bool:
    """False also where somebody has put another `forward` in that one's place since."""
    torchs = _torchs_forward(module)
    return torchs is not None and getattr(module.__dict__.get("forward"), "__func__", None) is _shown(torchs)


def _torchs_forward(module: nn.Module) -> FunctionType | None:
    """The forward pass of a module's class, if torch wrote it."""
    forward = inspect.getattr_static(type(module), "forward", None)
    is_torchs = isinstance(forward, FunctionType) and forward.__module__.partition(".")[0] == "torch"
    return forward if is_torchs else None


@functools.cache
def _shown(torchs: FunctionType) -> Callable[..., Any]:
    """The same function, but of this file."""

    @functools.wraps(torchs, assigned=("__doc__",))
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return torchs(self, *args, **kwargs)

    return forward


@_disable_dynamo  # as torch.compiler.disable, which would import the compiler now
def _before_forward(module: nn.Module, inputs: object) -> None:
    """The hook on every wrapped module; a function of the module, so that a copy of its `__dict__` carries no state."""
    inner = wrapping_of(module)
    if inner is None:
        return
    inner.note_use()
    if torch.is_grad_enabled():
        inner.before_forward(inputs)


@_disable_dynamo  # as torch.compiler.disable, which would import the compiler now
def _after_forward(module: nn.Module, _inputs: object, output: object) -> None:
    inner = wrapping_of(module)
    if inner is not None and torch.is_grad_enabled():
        inner.after_forward(output)


def _before_load(module: nn.Module, *_: object) -> None:
    inner = wrapping_of(module)
    if inner is not None:
        inner.before_load()


def _before_save(module: nn.Module, *_: object) -> None:
    watch_plans()
    inner = wrapping_of(module)
    if inner is not None:
        inner.note_use()


class _OfWrapping:
    """What copies to nothing. Threads: any. Owns: nothing."""

    def __init__(self, inner: BaguaDistributedDataParallel) -> None:
        self._inner = weakref.ref(inner)

    def _alive(self) -> BaguaDistributedDataParallel:
        inner = self._inner()
        assert inner is not None, "a wrapped module owns what wrapped it"
        return inner

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return nothing, ()


def nothing() -> None:
    """What a wrapped model's machinery becomes in a copy."""


class _NoSync(_OfWrapping):
    """`with model.no_sync():`. Threads: the trainer's. Owns: nothing."""

    def __call__(self) -> AbstractContextManager[None]:
        return self._alive().no_sync()


class _Buckets(_OfWrapping, Sequence[Any]):
    """The buckets as they are now: the first round's order of gradients changes them. Threads: the trainer's. Owns:
    nothing.
    """

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._alive().bagua_buckets[index]

    def __len__(self) -> int:
        return len(self._alive().bagua_buckets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


class _PlainState:
    """The module's `__getstate__`: what `copy` and `pickle` take is the module without its wrapping.

    Threads: any. Owns: nothing.
    """

    def __init__(self, module: nn.Module, hooks: tuple[int, int, int, int]) -> None:
        """Args:
        module: the module.
        hooks: numbers of the hooks before and after its forward passes, and before weights are loaded and saved.
        """
        self._module = weakref.ref(module)
        self._hooks = hooks

    def __call__(self) -> Any:
        module = self._module()
        assert module is not None, "it is asked by the module"
        own: Callable[[nn.Module], Any] | None = getattr(type(module), "__getstate__", None)
        state = module.__dict__ if own is None else own(module)
        if not isinstance(state, dict):
            return state  # of a class that says itself what it is made of
        left_out = (*_ATTRIBUTES, "forward") if _shows_forward(module) else _ATTRIBUTES
        state = {name: value for name, value in state.items() if name not in left_out}
        for name in ("_forward_pre_hooks", "_forward_hooks", "_load_state_dict_pre_hooks", "_state_dict_pre_hooks"):
            if name in state:
                kept = [(key, hook) for key, hook in state[name].items() if key not in self._hooks]
                state[name] = OrderedDict(kept)
        return state
