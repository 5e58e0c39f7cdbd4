"""BlueFog's optimizers: each makes of an optimizer one of the same class that also brings ranks together.

The result shares parameters, groups and state with the optimizer that was given, which is not to be used any more.
Nothing is broadcast: call `broadcast_parameters` and `broadcast_optimizer_state` first. Weights are communicated in
flat buckets of up to 8 MiB; those that are combined lie in theirs. BatchNorm's statistics stay each rank's own, as in
BlueFog.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Union

import torch

from pelton._warn import warn
from pelton.bluefog.torch import _windows
from pelton.bluefog.torch._basics import active_world
from pelton.bluefog.torch._combining import (
    CombinedBucket,
    CommunicationType,
    FlatBucket,
    Knobs,
    Named,
    Rhythm,
    buckets_of,
)
from pelton.bluefog.torch._optimizer_kinds import (
    AdaptThenCombine,
    AdaptWithCombine,
    Distributed,
    GradientAllreduce,
    PullGet,
    PushSum,
    Windowed,
    WinPut,
)
from pelton.errors import Aborted, DeadlineExceeded, InvalidArgument, PeerLost, PeltonError

__all__ = [
    "CommunicationType",
    "DistributedAdaptThenCombineOptimizer",
    "DistributedAdaptWithCombineOptimizer",
    "DistributedAllreduceOptimizer",
    "DistributedBluefogOptimizer",
    "DistributedGradientAllreduceOptimizer",
    "DistributedHierarchicalNeighborAllreduceOptimizer",
    "DistributedNeighborAllreduceOptimizer",
    "DistributedPullGetOptimizer",
    "DistributedPushSumOptimizer",
    "DistributedWinPutOptimizer",
]

Models = Union[torch.nn.Module, Sequence[torch.nn.Module]]
_Names = Union[Iterable[tuple[str, torch.Tensor]], None]


def _models_and_parameters(optimizer: torch.optim.Optimizer, model: Models) -> tuple[list[torch.nn.Module], Named]:
    """The models, and all that the optimizer steps, by name: those of container modules too, shared ones once."""
    models = [model] if isinstance(model, torch.nn.Module) else list(model)
    if not models or not all(isinstance(one, torch.nn.Module) for one in models):
        raise InvalidArgument(f"model: is {model!r}; must be a torch.nn.Module or a list of such")
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for number, one in enumerate(models):
        for name, parameter in one.named_parameters():
            full = name if len(models) == 1 else f"{number}.{name}"
            found.setdefault(id(parameter), (full, parameter))
    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = sum(id(parameter) not in found for parameter in stepped)
    if strangers:
        raise InvalidArgument(
            f"optimizer: {strangers} of its parameters are not in the model; give all models that it steps"
        )
    mine = {id(parameter) for parameter in stepped}
    return models, [(name, p) for name, p in found.values() if id(p) in mine]  # frozen ones too: they may be thawed


def _of_old_names(optimizer: torch.optim.Optimizer, named: _Names, kind: str) -> Named:
    """Of BlueFog before 0.2.1, whose optimizers knew no model."""
    given = list(named) if named is not None else []
    names = {id(parameter): name for name, parameter in given}
    if len({name for name, _ in given}) < len(given):
        raise InvalidArgument("named_parameters: two have one name")
    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if given and any(id(parameter) not in names for parameter in stepped):
        raise InvalidArgument("named_parameters: does not name all parameters of the optimizer")
    return [(names.get(id(p), f"{kind}.noname.{i}"), p) for i, p in enumerate(stepped)]


def _make(
    base: type[Distributed],
    optimizer: torch.optim.Optimizer,
    models: Sequence[torch.nn.Module],
    named: Named,
    interval: int,
    **attributes: Any,
) -> Any:
    if not isinstance(interval, int) or interval < 1:
        raise InvalidArgument(f"num_steps_per_communication: is {interval!r}; must be a whole number from 1")
    if isinstance(optimizer, Distributed):
        raise InvalidArgument(f"optimizer: is a {type(optimizer).__name__} that brings ranks together already")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgument(
            "optimizer: LBFGS evaluates the model several times within a step, at weights that no other rank has; take "
            "one whose step() needs no closure, such as SGD or Adam"
        )
    made: Any = type(type(optimizer).__name__, (base, type(optimizer)), {})
    result = made.__new__(made)
    result.__dict__.update(optimizer.__dict__)
    # A scheduler made before has put a step() of its own in the optimizer's place, which would combine nothing.
    if result.__dict__.pop("step", None) is not None:
        optimizer.__dict__["_opt_called"] = True  # else it would warn that its optimizer never steps
    result.__dict__.update(attributes)
    result.__dict__.update(_is_combined=active_world().size > 1, _skips=False, _named=named)
    hooked = models if result._is_combined else ()
    result.__dict__["_rhythm"] = Rhythm(hooked, interval, weakref.WeakMethod(result.begin))
    return result


def _combining(
    base: type[Distributed],
    optimizer: torch.optim.Optimizer,
    models: Sequence[torch.nn.Module],
    named: Named,
    interval: int,
    communication_type: CommunicationType,
) -> Any:
    """With the parameters in flat buffers; nowhere for a single rank, which combines nothing."""
    kind, knobs = "atc" if base is AdaptThenCombine else "awc", Knobs(communication_type)
    buckets = buckets_of(kind, named, CombinedBucket) if active_world().size > 1 else []
    return _make(base, optimizer, models, named, interval, _knobs=knobs, _buckets=buckets)


def DistributedAdaptWithCombineOptimizer(  # noqa: N802 (the names are BlueFog's)
    optimizer: torch.optim.Optimizer,
    model: Models,
    communication_type: CommunicationType = CommunicationType.neighbor_allreduce,
    num_steps_per_communication: int = 1,
) -> Any:
    """Steps from the neighbors' average: w = sum of weights * w - lr * gradient at the w before.

    The average is on its way from the J-th forward pass in training mode to step(). Attributes say with whom, at each
    communication anew: communication_type, self_weight, src_weights, dst_weights, src_machine_weights,
    dst_machine_weights, enable_topo_check.

    Args:
      optimizer: any; its parameters are in the model.
      model: a module or several; forward passes of the first count.
      communication_type: what weights are combined with.
      num_steps_per_communication: J.

    Returns:
      An optimizer of the class of the one that was given.

    Raises:
      InvalidArgument: a parameter is not in the model; or J is below 1.
    """
    models, named = _models_and_parameters(optimizer, model)
    return _combining(AdaptWithCombine, optimizer, models, named, num_steps_per_communication, communication_type)


def DistributedAdaptThenCombineOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Models,
    communication_type: CommunicationType = CommunicationType.neighbor_allreduce,
    num_steps_per_communication: int = 1,
) -> Any:
    """Averages what was stepped: w = sum of weights * (w - lr * gradient). Both happen in step().

    With its attribute steps_in_backward set both begin in the backward pass, as in BlueFog, as soon as the gradients of
    a bucket are final; nothing may change gradients before step() then.

    Args:
      optimizer: any, stepped by its own code or by what `register_step_function` was given.
      model: as `DistributedAdaptWithCombineOptimizer`.
      communication_type: as there.
      num_steps_per_communication: as there.

    Returns:
      As there, with the same attributes.

    Raises:
      InvalidArgument: as there.
    """
    models, named = _models_and_parameters(optimizer, model)
    return _combining(AdaptThenCombine, optimizer, models, named, num_steps_per_communication, communication_type)


def DistributedGradientAllreduceOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer, model: Models, num_steps_per_communication: int = 1
) -> Any:
    """Averages gradients over all ranks in each step() before which J forward passes were.

    Args:
      optimizer: as `DistributedAdaptWithCombineOptimizer`.
      model: as there.
      num_steps_per_communication: as there. A step() before that is this rank's own, as in BlueFog.

    Returns:
      An optimizer of the class of the one that was given.

    Raises:
      InvalidArgument: as there.
    """
    return _averaging_gradients(optimizer, *_models_and_parameters(optimizer, model), num_steps_per_communication)


def _averaging_gradients(optimizer: Any, models: Sequence[torch.nn.Module], named: Named, interval: int) -> Any:
    buckets = buckets_of("gradient", named, FlatBucket)
    return _make(GradientAllreduce, optimizer, models, named, interval, _buckets=buckets)


def _windowed(
    base: type[Windowed], optimizer: Any, models: Sequence[torch.nn.Module], named: Named, interval: int, prefix: Any
) -> Any:
    names = [f"{prefix}.{name}" if prefix else name for name, _ in named]
    taken = set(_windows.get_current_created_window_names()) & set(names)
    if taken:
        raise InvalidArgument(
            f"optimizer: there is a window {min(taken)!r} already; call unregister_window() of the optimizer that has "
            "it, or give DistributedWinPutOptimizer another window_prefix"
        )
    windows: dict[str, torch.Tensor] = {}
    result = _make(
        base,
        optimizer,
        models,
        named,
        interval,
        _windows=windows,
        _handles=[],
        force_barrier=False,
        dst_weights=None,
        src_weights=None,
    )
    tensors = {name: parameter.data for name, (_, parameter) in zip(names, named)} if result._is_combined else {}
    _create_all(tensors)
    windows.update(tensors)
    return result


def _create_all(tensors: dict[str, torch.Tensor], zero_init: bool = False) -> None:
    """Makes windows, all or none. An error is one of every rank, so that all free those before it, unless it says that
    the ranks do not answer each other any more.
    """
    made: list[str] = []
    try:
        for name, tensor in tensors.items():
            _windows.win_create(tensor, name, zero_init)
            made.append(name)
    except (Aborted, DeadlineExceeded, PeerLost):
        raise
    except PeltonError:
        for name in made:
            _windows.win_free(name)
        raise


def DistributedWinPutOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Models,
    num_steps_per_communication: int = 1,
    window_prefix: str | None = None,
) -> Any:
    """Puts weights into the neighbors' windows at the J-th forward pass, and steps from the mean with what has come.

    Ranks do not wait for each other, unless its attribute force_barrier is set; dst_weights says who gets what.

    Args:
      optimizer: as `DistributedAdaptWithCombineOptimizer`.
      model: as there; its parameters are contiguous. Those of a GPU move to memory of the host that it has mapped.
      num_steps_per_communication: as there.
      window_prefix: goes before the parameters' names in those of the windows.

    Returns:
      As there; its `unregister_window` frees the windows.

    Raises:
      InvalidArgument: as there; or there is a window of such a name.
    """
    models, named = _models_and_parameters(optimizer, model)
    return _windowed(WinPut, optimizer, models, named, num_steps_per_communication, window_prefix)


def DistributedPullGetOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer, model: Models, num_steps_per_communication: int = 1
) -> Any:
    """Gets the neighbors' weights at the J-th forward pass, and steps from the mean with them.

    Args:
      optimizer: as `DistributedWinPutOptimizer`.
      model: as there.
      num_steps_per_communication: as there.

    Returns:
      As there; its attribute src_weights says what is taken of whom.

    Raises:
      InvalidArgument: as there.
    """
    models, named = _models_and_parameters(optimizer, model)
    return _windowed(PullGet, optimizer, models, named, num_steps_per_communication, "pull.get")


def DistributedPushSumOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer, model: Models, num_steps_per_communication: int = 1
) -> Any:
    """Push-sum (arXiv 1811.10792) over a directed graph: right also where ranks have unequally many in-neighbors.

    Args:
      optimizer: as `DistributedWinPutOptimizer`.
      model: as there. Between steps its parameters hold z = x / w.
      num_steps_per_communication: as there.

    Returns:
      As there. A barrier is in each communication unless its attribute force_barrier is unset.

    Raises:
      InvalidArgument: as there.
    """
    models, named = _models_and_parameters(optimizer, model)
    buckets = buckets_of("push.sum", named, FlatBucket)
    windows: dict[str, torch.Tensor] = {}
    for bucket in buckets:
        one = torch.ones(1, dtype=bucket.parameters[0].dtype, device=bucket.parameters[0].device)
        windows[bucket.name] = torch.cat([bucket.packed(bucket.parameters), one])
    result = _make(
        PushSum,
        optimizer,
        models,
        named,
        num_steps_per_communication,
        _windows=windows,
        _handles=[],
        force_barrier=True,
        _buckets=buckets,
    )
    _create_all(windows if result._is_combined else {}, zero_init=True)
    return result


def _deprecated(name: str) -> None:
    warn(f"{name} is BlueFog's older name of DistributedAdaptWithCombineOptimizer", PendingDeprecationWarning)


def _of_old_form(
    name: str, kind: str, optimizer: torch.optim.Optimizer, model: Any, named_parameters: _Names
) -> Named | None:
    """The parameters, if it is called in BlueFog 0.2's form; None: it is not, and a warning tells of the older name."""
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    are_models = bool(models) and all(isinstance(one, torch.nn.Module) for one in models)
    if are_models and (named_parameters is None or isinstance(model, torch.nn.Module)):
        _deprecated(name)
        return None
    return _of_old_names(optimizer, model if named_parameters is None else named_parameters, kind)


def DistributedAllreduceOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Any = None,
    num_steps_per_communication: int = 1,
    named_parameters: _Names = None,
) -> Any:
    """Averages weights over all ranks, as `DistributedAdaptWithCombineOptimizer`; or gradients, as BlueFog 0.2 did.

    Args:
      optimizer: as there.
      model: as there. Named parameters in its place, or none, are BlueFog 0.2's form: that averages gradients.
      num_steps_per_communication: as there.
      named_parameters: of BlueFog 0.2.

    Returns:
      As there.

    Raises:
      InvalidArgument: as there.
    """
    named = _of_old_form("DistributedAllreduceOptimizer", "allreduce", optimizer, model, named_parameters)
    if named is not None:
        return _averaging_gradients(optimizer, (), named, num_steps_per_communication)
    return DistributedAdaptWithCombineOptimizer(
        optimizer, model, CommunicationType.allreduce, num_steps_per_communication
    )


def DistributedNeighborAllreduceOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Any = None,
    num_steps_per_communication: int = 1,
    named_parameters: _Names = None,
) -> Any:
    """Steps from the neighbors' average, as `DistributedAdaptWithCombineOptimizer`; also in BlueFog 0.2's form.

    Args:
      optimizer: as there.
      model: as there. Named parameters in its place, or none, are BlueFog 0.2's form, which communicates in step().
      num_steps_per_communication: as there.
      named_parameters: of BlueFog 0.2.

    Returns:
      As there.

    Raises:
      InvalidArgument: as there.
    """
    named = _of_old_form("DistributedNeighborAllreduceOptimizer", "allreduce", optimizer, model, named_parameters)
    kind = CommunicationType.neighbor_allreduce
    if named is not None:
        return _combining(AdaptWithCombine, optimizer, (), named, num_steps_per_communication, kind)
    return DistributedAdaptWithCombineOptimizer(optimizer, model, kind, num_steps_per_communication)


def DistributedHierarchicalNeighborAllreduceOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer, model: Models, num_steps_per_communication: int = 1
) -> Any:
    """`DistributedAdaptWithCombineOptimizer` over machines.

    Args:
      optimizer: as there.
      model: as there.
      num_steps_per_communication: as there.

    Returns:
      As there.

    Raises:
      InvalidArgument: as there.
    """
    _deprecated("DistributedHierarchicalNeighborAllreduceOptimizer")
    return DistributedAdaptWithCombineOptimizer(
        optimizer, model, CommunicationType.hierarchical_neighbor_allreduce, num_steps_per_communication
    )


def DistributedBluefogOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    model: Any = None,
    num_steps_per_communication: int = 1,
    named_parameters: _Names = None,
) -> Any:
    """BlueFog's older name of `DistributedWinPutOptimizer`.

    Args:
      optimizer: as there.
      model: as there. Named parameters in its place, or none, are BlueFog 0.2's form, which communicates in step().
      num_steps_per_communication: as there.
      named_parameters: names for the windows, of BlueFog 0.2.

    Returns:
      As there.

    Raises:
      InvalidArgument: as there.
    """
    named = _of_old_form("DistributedBluefogOptimizer", "win.put", optimizer, model, named_parameters)
    if named is not None:
        return _windowed(WinPut, optimizer, (), named, num_steps_per_communication, None)
    return DistributedWinPutOptimizer(optimizer, model, num_steps_per_communication)
