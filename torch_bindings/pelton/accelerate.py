"""Hugging Face Accelerate trains with Pelton's algorithms: `from pelton.accelerate import Accelerator`.

    accelerator = Accelerator(algorithm="bytegrad", cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

All else is Accelerate's. Its own class works, too, with PELTON_REPLACE_GLOO=1: then models are DDP's over Pelton.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pelton._extras import optional_module
from pelton.errors import InvalidArgument, Unsupported

optional_module("accelerate", "pelton.accelerate", "accelerate")

import accelerate  # noqa: E402
from pelton_autoload import gloos_seat  # noqa: E402

import pelton  # noqa: E402
from pelton._training import _launchers, _session, communication, env  # noqa: E402
from pelton._training._parameters import parameter_ids  # noqa: E402
from pelton._training.checkpoint import _beside  # noqa: E402
from pelton._training.checkpoint._ranks import paused  # noqa: E402
from pelton._training.data_parallel._attachment import wrapping_of  # noqa: E402
from pelton._training.data_parallel._together import begin_anew  # noqa: E402
from pelton._training.data_parallel.distributed import NO_JOINING, DistributedDataParallel_V1_9_0  # noqa: E402

if TYPE_CHECKING:
    from pelton._training.algorithms.base import Algorithm

# What does the work of Accelerate's hooks, by their names.
_INSTEAD = {
    "fp16": "algorithm='bytegrad', algorithm_options={'codec': 'float16'}",
    "bf16": "algorithm='bytegrad', algorithm_options={'codec': 'bfloat16'}",
    "power_sgd": "algorithm='power_sgd'",
    "batched_power_sgd": "algorithm='power_sgd'",
}


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]
    """Wraps models as `pelton.wrap` does, where Accelerate's own wraps them in DistributedDataParallel.

    Threads: the trainer's. Owns: as its base.
    """

    def __init__(
        self,
        *args: Any,
        algorithm: str | Algorithm = "gradient_allreduce",
        algorithm_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Joins the job that `pelton run`, torchrun, `accelerate launch`, srun or mpirun has started.

        Args:
          *args: Accelerate's.
          algorithm: a name of `pelton.torch_api.algorithms.GlobalAlgorithmRegistry`, or an algorithm.
          algorithm_options: of the algorithm, where that is a name.
          **kwargs: Accelerate's.

        Raises:
          FailedPrecondition: Accelerate takes each of several processes for a job of its own.
          InvalidArgument: a launcher speaks of several tasks, but not of this one's number.
          Unsupported: a hook of torch's DistributedDataParallel is asked for, which nothing would call.
        """
        gloos_seat.take()  # Accelerate refuses backends of other names on a CPU
        if env.get_world_size() > 1:
            _launchers.adopt()  # of which Accelerate knows some only, and those only with `cpu=True`
        super().__init__(*args, **kwargs)
        if self.num_processes == 1:  # as without GPUs, unless Accelerate is told `cpu=True`
            remedy = "Pass cpu=True, or set ACCELERATE_USE_CPU=1, where there are no GPUs"
            _launchers.refuse_to_be_alone("Accelerator", "Accelerate", env.get_world_size(), remedy)
        _refuse_hooks(self.ddp_handler)
        self._algorithm = algorithm
        self._algorithm_options = algorithm_options or {}

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """As its base. A model has to come together with the optimizers that step it, unless nothing in it requires a
        gradient. Collective.

        Raises:
          InvalidArgument: a model comes without an optimizer for it; and as `pelton.wrap`.
        """
        if self.num_processes > 1:
            for model in args:
                if isinstance(model, nn.Module):
                    self._wrap(model, [part for part in args if isinstance(part, torch.optim.Optimizer)])
        return super().prepare(*args, device_placement=device_placement)

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """As its base, of a wrapped model, one without gradients, or one that is only evaluated.

        Raises:
          InvalidArgument: it is another one, which the base would train in torch's DistributedDataParallel.
        """
        is_ours = _is_wrapped(model) or _is_frozen(model)
        if self.num_processes > 1 and not (evaluation_mode or is_ours):
            raise InvalidArgument(
                f"prepare_model: {type(model).__name__} would be trained by torch's DistributedDataParallel, not by "
                f"{self._algorithm!r}; pass it to prepare() together with the optimizer that steps it, or, if it is "
                "only evaluated, evaluation_mode=True"
            )
        prepared: nn.Module = super().prepare_model(model, device_placement, evaluation_mode or is_ours)
        return prepared

    def save_state(self, output_dir: str | None = None, safe_serialization: bool = True, **kwargs: Any) -> str:
        """As its base, which saves rank 0's state. Beside that, what of every other rank's models, optimizers,
        schedulers and gradient scaler differs from it, and what the algorithms remember on each rank. Collective.

        Raises:
          FailedPrecondition: the file `pelton_ranks.pt` of the folder cannot be written.
          Unsupported: the ranks are on several hosts, and each host is to save a state of its own.
        """
        if self.project_configuration.save_on_each_node and self._trained().models:
            _refuse_several_hosts()
        with paused(self._inner_objects()):
            folder: str = super().save_state(output_dir, safe_serialization, **kwargs)
            trained = self._trained()
            if trained.models:
                _beside.save(folder, trained)
        return folder

    def load_state(
        self,
        input_dir: str | None = None,
        load_kwargs: dict[str, Any] | None = None,
        *,
        algorithm_state: bool = True,
        **load_model_func_kwargs: Any,
    ) -> None:
        """As its base; each rank then goes on from its own state, and its algorithms from what they remembered. On
        another number of ranks each takes the mean of what differed. Collective.

        Args:
          input_dir: Accelerate's.
          load_kwargs: Accelerate's.
          algorithm_state: False: all ranks take rank 0's state, and the algorithms begin anew. For another algorithm
            than the state was saved with.
          **load_model_func_kwargs: Accelerate's.

        Raises:
          InvalidArgument: the state is of another algorithm, or of another number of models; or some ranks have the
            file `pelton_ranks.pt` in the folder, and some do not.
          Unsupported: it was saved by another number of ranks, and a model has experts.
        """
        folders: list[str] = []
        hook = self.register_load_state_pre_hook(lambda _, folder: folders.append(folder))
        with paused(self._inner_objects()):
            try:
                super().load_state(input_dir, load_kwargs, **load_model_func_kwargs)
            finally:
                hook.remove()
            trained = self._trained()
            if trained.models and algorithm_state:
                _beside.load(folders[0], trained)
            elif trained.models:
                for _, inner in trained.models:
                    begin_anew(inner)
                    inner._loaded.state_came()

    @contextlib.contextmanager
    def join_uneven_inputs(self, joinables: list[Any], even_batches: bool | None = None) -> Iterator[None]:
        """As its base, of what is not a wrapped model; with even batches a wrapped one needs nothing.

        Raises:
          Unsupported: a wrapped model is to be joined, and batches may be uneven.
        """
        wrapped = [model for model in joinables if isinstance(model, nn.Module) and _inner_of(model) is not None]
        if wrapped and not (self.even_batches and even_batches is not False):
            raise Unsupported(f"join_uneven_inputs: {type(wrapped[0]).__name__}: {NO_JOINING}")
        others = [joinable for joinable in joinables if not any(joinable is model for model in wrapped)]
        with super().join_uneven_inputs(others, even_batches) if others else contextlib.nullcontext():
            yield

    def unwrap_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        """As its base; the model inside Pelton's DistributedDataParallel, too."""
        inside = model.module if isinstance(model, DistributedDataParallel_V1_9_0) else model
        unwrapped: nn.Module = super().unwrap_model(inside, *args, **kwargs)
        return unwrapped

    @staticmethod
    @contextlib.contextmanager
    def trigger_sync_in_backward(model: nn.Module) -> Iterator[None]:
        """Backward passes within it communicate, also inside `no_sync`.

        Args:
          model: prepared, or any other, for which nothing is changed.
        """
        inner = model.inner if isinstance(model, DistributedDataParallel_V1_9_0) else wrapping_of(model)
        if inner is None:
            yield
            return
        before, inner.require_backward_grad_sync = inner.require_backward_grad_sync, True
        try:
            yield
        finally:
            inner.require_backward_grad_sync = before

    def _wrap(self, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        if _is_frozen(model) or _is_wrapped(model):
            return
        model.to(self.device)  # before its parameters are registered; an optimizer keeps them
        parameters = {id(parameter) for parameter in model.parameters()}
        own = [optimizer for optimizer in optimizers if not parameters.isdisjoint(parameter_ids(optimizer))]
        if not own:
            raise InvalidArgument(
                f"prepare: {type(model).__name__} comes without an optimizer that steps it; pass both in one call. A "
                "model that is only evaluated goes through prepare_model(model, evaluation_mode=True)"
            )
        if not communication.is_initialized():
            pelton.init()
        pelton.wrap(model, own, self._algorithm, **self._algorithm_options)

    def _trained(self) -> _beside.Trained:
        found = [(model, _inner_of(model)) for model in self._models]
        models = [(model, inner) for model, inner in found if inner is not None]
        return _beside.Trained(models, self._optimizers, self._schedulers, self.scaler)

    def _inner_objects(self) -> dict[str, Any]:
        return {str(number): inner for number, (_, inner) in enumerate(self._trained().models)}


def _refuse_several_hosts() -> None:
    """Accelerate saves a rank of each host for it then, and what the other ranks have beside rank 0's fits rank 0's."""
    if len(set(_session.current().hosts)) > 1:
        raise Unsupported(
            "save_state: ProjectConfiguration(save_on_each_node=True): the ranks of other hosts would go on from "
            "another state than rank 0's. Leave it out, and load from a disk that all hosts share, or from a copy of "
            "the folder of rank 0's host"
        )


def _refuse_hooks(handler: accelerate.DistributedDataParallelKwargs | None) -> None:
    hook = None if handler is None else str(getattr(handler.comm_hook, "value", handler.comm_hook))
    if hook in (None, "no"):
        return
    instead = _INSTEAD.get(hook, "algorithm= with one of pelton.algorithms()")
    raise Unsupported(
        f"kwargs_handlers: DistributedDataParallelKwargs(comm_hook={hook!r}): torch's DistributedDataParallel calls "
        f"such a hook, and pelton.accelerate does not use that class. Leave the hook out and give Accelerator {instead}"
    )


def _inner_of(model: nn.Module) -> Any:
    """The object behind a wrapped model, also a compiled one; None: it is not wrapped, or its wrapping has ended."""
    try:
        inner = pelton.wrapping_of(model)
    except InvalidArgument:
        return None
    return inner if inner._rounds is not None else None


def _is_wrapped(model: nn.Module) -> bool:
    return wrapping_of(model) is not None or isinstance(model, DistributedDataParallel_V1_9_0)


def _is_frozen(model: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in model.parameters())
