"""Optimizers that step many small parameters as few large ones."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import optim
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from pelton._training._parameters import parameter_ids
from pelton._warn import warn
from pelton.errors import FailedPrecondition, InvalidArgument
from pelton.torch_api.contrib.fuse._fusion import Fusion
from pelton.torch_api.contrib.fuse._wrapped import WrappedParameters, wrapped_parameters

__all__ = ["fuse_optimizer", "fuse_step", "is_fused_optimizer"]

# What they do to an element depends on nothing but that element's own values.
_ELEMENTWISE = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.Adadelta,
    optim.Adagrad,
    optim.ASGD,
    optim.RMSprop,
    optim.Rprop,
)
_REFUSED = {
    "capturable": "its steps may be recorded in a graph, which replays them on the memory of that moment",
    "differentiable": "its steps are part of a graph of autograd, which a change of memory would cut",
}
_FUSION = "_bagua_fusion"


def fuse_optimizer(
    optimizer: Optimizer, do_flatten: bool = True, check_flatten: bool = True, *, elementwise: bool | None = None
) -> Any:
    """Gives an optimizer a second way to step, `fuse_step`, which steps neighbours in memory as one parameter.

    The result is that of `step`, bit for bit, and the two may alternate. An optimizer that looks at more than single
    elements (LBFGS, Adafactor, Muon), or that is not one of torch's, steps plainly in `fuse_step` too, with a warning
    here; so do Pelton's own, which take many tensors at a time already.

    Args:
      optimizer: any one of torch's kind.
      do_flatten: weights, gradients and states of each group and dtype are moved, so that they lie one after the
        other: the parameters stay the same objects with other memory. Gradients that lie in the buckets of a wrapped
        model stay there, and weights and states are laid out as they are. Gradients in another library's buckets, or
        in those of an algorithm written in Python, stay as well, and their parameters are stepped plainly.
      check_flatten: before each fused step, what has come to lie elsewhere since is moved back, gradients that a
        backward pass made anew among it (`zero_grad(set_to_none=False)` spares that copy). Needs `do_flatten`.
      elementwise: whether the optimizer treats each element by itself; None: of torch's own that is known. True is
        the caller's word for one that is not torch's, False has `fuse_step` be `step`.

    Returns:
      The same object. Its `_bagua_fused_count` counts groups in which a fused step has fused something.

    Raises:
      FailedPrecondition: it is a fused one already.
      InvalidArgument: it is no optimizer, or has `capturable` or `differentiable` set.
    """
    if not isinstance(optimizer, Optimizer):
        raise InvalidArgument(f"optimizer: must be a torch.optim.Optimizer, is a {type(optimizer).__name__}")
    if is_fused_optimizer(optimizer):
        raise FailedPrecondition(f"fuse_optimizer: this {type(optimizer).__name__} is a fused optimizer already")
    _check_options(optimizer)
    is_elementwise = _is_elementwise(optimizer) if elementwise is None else elementwise
    if not is_elementwise and elementwise is None:
        warn(
            f"fuse_optimizer: {type(optimizer).__name__} is not known to treat each element by itself, so that "
            "fuse_step will step it plainly; elementwise=True says that it does, False that this is meant"
        )
    fusion = Fusion(do_flatten, do_flatten and check_flatten) if is_elementwise else None
    named: Any = optimizer
    setattr(named, _FUSION, fusion)
    named._bagua_fused_count = 0
    named.fuse_step = _method(optimizer)
    if fusion is not None:
        fusion.flatten(optimizer, _wrapped_parameters(optimizer))
    return optimizer


def is_fused_optimizer(optimizer: Optimizer) -> bool:
    """Whether `fuse_optimizer` was called with it; a copy of such a one is plain."""
    return hasattr(optimizer, _FUSION)


def fuse_step(
    optimizer: Optimizer,
    closure: Callable[[], Any] | None = None,
    *,
    grad_scaler: GradScaler | None = None,
) -> Any:
    """One step of a fused optimizer: as its `step`, hooks and all.

    Args:
      optimizer: what `fuse_optimizer` returned.
      closure: computes the loss again, if given.
      grad_scaler: in whose `step` this one is to be made, unscaled, and left out after an overflow.

    Returns:
      What `step` would: of the closure, or of the scaler.

    Raises:
      FailedPrecondition: it is no fused optimizer.
      InvalidArgument: it has `capturable` or `differentiable` set by now.
    """
    if not is_fused_optimizer(optimizer):
        raise FailedPrecondition(
            f"fuse_step: this {type(optimizer).__name__} is no fused optimizer; call fuse_optimizer() with it first"
        )
    _check_options(optimizer)
    named: Any = optimizer
    if getattr(named, _FUSION) is None:
        if grad_scaler is not None:
            return grad_scaler.step(optimizer)
        return named.step() if closure is None else named.step(closure)
    if grad_scaler is None:
        return _hooked(optimizer, closure)
    with _steps_fused(optimizer):
        return grad_scaler.step(optimizer)


@Optimizer.profile_hook_step
def _hooked(optimizer: Optimizer, closure: Callable[[], Any] | None) -> Any:
    """What stands in the place of the class's `step`, within the same hooks."""
    named: Any = optimizer
    named._opt_called = True  # what a scheduler looks for before it warns of a step left out
    loss = None
    if closure is not None:  # here, because within the step the optimizer has other parameters
        with torch.enable_grad():
            loss = closure()
    with torch.no_grad():
        fusion: Fusion = getattr(named, _FUSION)
        named._bagua_fused_count += fusion.step(optimizer, _own_step(optimizer), _wrapped_parameters(optimizer))
    return loss


def _own_step(optimizer: Optimizer) -> Callable[[Optimizer], Any]:
    """The class's `step` without the hooks around it."""
    step: Any = type(optimizer).step
    unhooked: Callable[[Optimizer], Any] = step.__wrapped__ if getattr(step, "hooked", False) else step
    return unhooked


@contextlib.contextmanager
def _steps_fused(optimizer: Optimizer) -> Iterator[None]:
    """Within it, whoever calls the optimizer's `step` makes a fused one."""
    attributes = vars(optimizer)
    kept = attributes.get("step")  # what a scheduler has put there
    attributes["step"] = lambda: _hooked(optimizer, None)
    try:
        yield
    finally:
        del attributes["step"]
        if kept is not None:
            attributes["step"] = kept


def _method(optimizer: Optimizer) -> Callable[..., Any]:
    """`fuse_step` of an optimizer that does not keep it alive."""
    reference = weakref.ref(optimizer)

    def method(closure: Callable[[], Any] | None = None, *, grad_scaler: GradScaler | None = None) -> Any:
        """As `fuse_step`."""
        alive = reference()
        assert alive is not None, "it is called by the optimizer's name"
        return fuse_step(alive, closure, grad_scaler=grad_scaler)

    return method


def _is_elementwise(optimizer: Optimizer) -> bool:
    """Whether its `step` is that of one of torch's that are."""
    own = inspect.unwrap(type(optimizer).step)
    return any(own is inspect.unwrap(known.step) for known in _ELEMENTWISE)


def _check_options(optimizer: Optimizer) -> None:
    for number, group in enumerate(optimizer.param_groups):
        for option, reason in _REFUSED.items():
            if group.get(option):
                raise InvalidArgument(
                    f"optimizer: group {number} of this {type(optimizer).__name__} has {option}=True: {reason}. Leave "
                    f"{option} out, or step it by step()"
                )


def _wrapped_parameters(optimizer: Optimizer) -> WrappedParameters:
    return wrapped_parameters(parameter_ids(optimizer))
