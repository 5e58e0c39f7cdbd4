"""Looks at the plans of torch.distributed.checkpoint, which keeps one rank's of the tensors that ranks name alike.

Experts of different ranks have the same names, and of an expert's tensors each may come from another rank: what is
loaded then is nobody's, without an error. Only where the plans of all ranks are seen together can that be noticed.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pelton._training import _session
from pelton._warn import warn
from pelton.errors import InvalidArgument

_PLANNERS = "torch.distributed.checkpoint.default_planner"  # takes a second to import
_EXPERTS = "bagua_experts"
_WATCHED = "_pelton_watches"


def watch_plans() -> None:
    """Has torch's planners check what they bring together, if anybody has imported them. Idempotent; never blocks."""
    planners = sys.modules.get(_PLANNERS)
    for name, check in (("DefaultSavePlanner", _check_save), ("DefaultLoadPlanner", _check_load)):
        planner: Any = getattr(planners, name, None)
        if planner is not None and not getattr(planner, _WATCHED, False):
            planner.create_global_plan = _checked(planner.create_global_plan, check)
            setattr(planner, _WATCHED, True)


def _checked(plan_globally: Callable[..., Any], check: Callable[[set[str]], None]) -> Callable[..., Any]:
    """On rank 0 of the group; torch raises on all ranks what it raises there."""

    @functools.wraps(plan_globally)
    def checked(planner: Any, all_plans: Any, *args: Any, **kwargs: Any) -> Any:
        check(_of_several(all_plans))
        return plan_globally(planner, all_plans, *args, **kwargs)

    return checked


def _of_several(plans: Iterable[Any]) -> set[str]:
    """The names that more than one rank's plan has."""
    counts = Counter(name for plan in plans for name in set(_names(plan)))
    return {name for name, count in counts.items() if count > 1}


def _names(plan: Any) -> Iterator[str]:
    for item in plan.items:
        index = getattr(item, "index", None) or item.storage_index  # of what is written; of what is read
        yield index.fqn


def _check_load(names: set[str]) -> None:
    """Raises InvalidArgument: two ranks would load the same expert."""
    for name in sorted(names):
        if _EXPERTS in name.split("."):
            raise InvalidArgument(
                f"'{name}' is an expert's, and experts of different ranks have the same name: torch.distributed."
                "checkpoint would mix them. Give save and async_save the planner SavePlanner(), and load the planner "
                "LoadPlanner(), of pelton.torch_api.checkpoint.planners, or use pelton.torch_api.checkpoint"
            )


def _check_save(names: set[str]) -> None:
    """Raises InvalidArgument: two ranks would save an expert under one name. Warns where dense tensors may differ."""
    _check_load(names)
    concerned = [model for model in _models_that_differ() if _first_of(model, names)]
    if concerned:
        kinds = {f"{model.bagua_module_name} ({type(model.bagua_algorithm).__name__})" for model in concerned}
        warn(
            f"{', '.join(sorted(kinds))}: the algorithm lets weights and optimizers differ between ranks, and "
            f"torch.distributed.checkpoint keeps of each tensor ('{_first_of(concerned[0], names)}' and others) that "
            "of any one rank. To keep every rank's, give save the planner SavePlanner(per_rank=True) and load "
            "LoadPlanner(per_rank=True), of pelton.torch_api.checkpoint.planners, or use pelton.torch_api.checkpoint"
        )


def _models_that_differ() -> list[Any]:
    models: list[Any] = _session.current().models() if _session.is_initialized() else []
    return [model for model in models if model._rounds is not None and model._rounds.may_differ]


def _first_of(model: Any, names: set[str]) -> str:
    """The first parameter of a wrapped model that goes by one of the names; "": none. Another model may have it, too:
    what is saved may be a copy, so that names are all there is to go by.
    """
    ends = {".".join(parts[first:]) for parts in (n.split(".") for n in names) for first in range(len(parts))}
    return next((name for name, _ in model._selected.trainable if name in ends), "")
