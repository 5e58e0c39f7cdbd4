"""Chooses the kind of rounds that an algorithm asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pelton import _C
from pelton._training._parameters import NamedTensors, SelectedTensors, names_without_optimizer
from pelton._training._session import Session
from pelton._training.algorithms.base import RegisteredAlgorithm
from pelton._training.data_parallel._algorithm_state import NOTHING, AlgorithmState
from pelton._training.data_parallel._runtime_rounds import OptimizerState, RuntimeRounds
from pelton._training.data_parallel._steps import ModelSteps
from pelton.errors import InvalidArgument


@dataclass(frozen=True)
class Registration:
    """What rounds are made of. Threads: a value. Owns: references."""

    session: Session
    ranks: list[int]
    name: str
    trainable: NamedTensors
    optimizers: Sequence[torch.optim.Optimizer]
    algorithm: RegisteredAlgorithm
    flatten: bool
    bucket_bytes: int
    schedules: str = ""  # rows for collectives between hosts that go before the job's


def make_rounds(registration: Registration, state: AlgorithmState | None = None) -> RuntimeRounds:
    """Registers a model with the runtime. Collective over the ranks.

    Args:
      registration: the model and its algorithm.
      state: what the same algorithm remembered of the same tensors; None: it begins anew.

    Raises:
      InvalidArgument: the algorithm's options, or a parameter that it needs an optimizer for; or the ranks differ.
    """
    algorithm = registration.algorithm
    _check_optimizers(registration)
    _, trigger = _C.schedule(algorithm.name, algorithm.options)
    source = _optimizer_state(registration)
    models = [_algorithms_model(registration, source, state)]
    if algorithm.exchange is not None:
        gradients = RegisteredAlgorithm("gradient_allreduce")
        models.append(_model(registration, registration.trainable, gradients, None))
    return RuntimeRounds(
        models,
        registration.optimizers,
        trigger,
        registration.session.timeout_s,
        state=source,
        runs_apart=algorithm.runs_apart,
    )


def model_steps(
    model: str,
    selected: SelectedTensors,
    optimizers: Sequence[torch.optim.Optimizer],
    algorithm: RegisteredAlgorithm | None,
) -> ModelSteps:
    """What knows the steps of a model.

    Args:
      model: its name in errors.
      selected: its tensors.
      optimizers: those that were given.
      algorithm: the runtime's that does the work, if one does.
    """
    counts = algorithm is not None and _counts_steps(algorithm)
    # An Adam's algorithm is one of the runtime's after another, of which the user has named none.
    is_named = algorithm is not None and algorithm.stepped_by is None
    name = algorithm.name if algorithm is not None and is_named else "its algorithm"
    return ModelSteps(model, name, selected.trainable, optimizers, counts)


def _counts_steps(algorithm: RegisteredAlgorithm) -> bool:
    """Whether it brings ranks together by the steps of the optimizers that it was given, and by nothing else."""
    _, trigger = _C.schedule(algorithm.name, algorithm.options)
    needs_them = algorithm.needs_every_parameter_in_an_optimizer or algorithm.stepped_by is not None
    return needs_them or trigger == "after_step"


def without_optimizer(
    algorithm: RegisteredAlgorithm | None, optimizers: Sequence[torch.optim.Optimizer], named: NamedTensors
) -> list[str]:
    """Names of the parameters that an algorithm cannot take, because it goes by the steps of optimizers that were given
    and none of them steps these.

    Args:
      algorithm: the runtime's that does the work; None: it is written in Python.
      optimizers: those that were given.
      named: the parameters.
    """
    if algorithm is None or not _counts_steps(algorithm):
        return []
    return names_without_optimizer(named, optimizers if algorithm.stepped_by is None else [algorithm.stepped_by])


def _check_optimizers(registration: Registration) -> None:
    algorithm = registration.algorithm
    if algorithm.stepped_by is not None:
        kind = type(algorithm.stepped_by).__name__
        if not any(optimizer is algorithm.stepped_by for optimizer in registration.optimizers):
            raise InvalidArgument(
                f"optimizers: {algorithm.name} was made with a {kind} that is not among them; pass that one"
            )
    missing = without_optimizer(algorithm, registration.optimizers, registration.trainable)
    if missing and algorithm.stepped_by is not None:
        raise InvalidArgument(
            f"{', '.join(missing)}: not among the parameters of the {type(algorithm.stepped_by).__name__} that the "
            "algorithm was made with; add_param_group() adds them, requires_grad_(False) or "
            "_bagua_params_and_buffers_to_ignore leaves them out"
        )
    if missing:
        raise InvalidArgument(
            f"{algorithm.name}: no optimizer steps {', '.join(missing)}; give with_bagua all of the model's"
        )


def _optimizer_state(registration: Registration) -> OptimizerState | None:
    """What the algorithm communicates of an optimizer, if it does."""
    parameters = [parameter for _, parameter in registration.trainable]
    exchange, moment_of = registration.algorithm.exchange, registration.algorithm.moment_of
    if exchange is not None:
        return OptimizerState(lambda: [exchange.accumulated_of(p) for p in parameters], exchange=exchange)
    if moment_of is not None:
        return OptimizerState(
            lambda: [moment_of(p)[0] for p in parameters], lambda: [moment_of(p)[1] for p in parameters]
        )
    return None


def _algorithms_model(
    registration: Registration, source: OptimizerState | None, state: AlgorithmState | None
) -> _C.Model:
    """The model that runs the algorithm itself."""
    tensors = registration.trainable
    steps = state.steps if state else 0
    if source is None:
        return _model(registration, tensors, registration.algorithm, state, steps=steps)
    if source.betas is not None:
        moments = list(zip(source.tensors(), source.betas()))
        return _model(registration, tensors, registration.algorithm, state, moments=moments)
    named = [(name, tensor) for (name, _), tensor in zip(tensors, source.tensors())]
    return _model(registration, named, registration.algorithm, state, on_call=True)


def _model(
    registration: Registration,
    tensors: NamedTensors,
    algorithm: RegisteredAlgorithm,
    state: AlgorithmState | None,
    *,
    moments: Sequence[tuple[torch.Tensor, float]] = (),
    on_call: bool = False,
    steps: int = 0,
) -> _C.Model:
    return _C.Model(
        registration.session.backend,
        registration.ranks,
        registration.name,
        tensors,
        algorithm.name,
        algorithm.options,
        registration.bucket_bytes,
        registration.flatten,
        registration.session.timeout_s,
        moments,
        on_call,
        steps,
        state.runtime if state else NOTHING,
        list(state.whole) if state else [],
        registration.schedules,
    )
