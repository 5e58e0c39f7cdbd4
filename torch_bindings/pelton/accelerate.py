"""Hugging Face Accelerate trains with Pelton's algorithms: `from pelton.accelerate import Accelerator`.

    accelerator = Accelerator(algorithm="bytegrad", cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

All else is Accelerate's. Its own class works, too, with PELTON_REPLACE_GLOO=1: then models are DDP's over Pelton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pelton._extras import optional_module
from pelton.errors import InvalidArgument

optional_module("accelerate", "pelton.accelerate", "accelerate")

import accelerate  # noqa: E402
from pelton_autoload import gloos_seat  # noqa: E402

import pelton  # noqa: E402
from pelton import torch_api  # noqa: E402
from pelton.torch_api.data_parallel._attachment import wrapping_of  # noqa: E402

if TYPE_CHECKING:
    from pelton.torch_api.algorithms.base import Algorithm


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
        """Joins the job that `pelton run`, torchrun or `accelerate launch` has started.

        Args:
          *args: Accelerate's.
          algorithm: a name of `pelton.torch_api.algorithms.GlobalAlgorithmRegistry`, or an algorithm.
          algorithm_options: of the algorithm, where that is a name.
          **kwargs: Accelerate's.
        """
        gloos_seat.take()  # Accelerate refuses backends of other names on a CPU
        super().__init__(*args, **kwargs)
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
        """As its base, but that neither a wrapped model nor one without gradients becomes DistributedDataParallel's."""
        is_ours = wrapping_of(model) is not None or _is_frozen(model)
        prepared: nn.Module = super().prepare_model(model, device_placement, evaluation_mode or is_ours)
        return prepared

    def _wrap(self, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        if _is_frozen(model) or wrapping_of(model) is not None:
            return
        model.to(self.device)  # before its parameters are registered; an optimizer keeps them
        parameters = {id(parameter) for parameter in model.parameters()}
        own = [optimizer for optimizer in optimizers if _steps(optimizer, parameters)]
        if not own:
            raise InvalidArgument(
                f"prepare: {type(model).__name__} comes without an optimizer that steps it; pass both in one call"
            )
        if not torch_api.is_initialized():
            pelton.init()
        pelton.wrap(model, own, self._algorithm, **self._algorithm_options)


def _steps(optimizer: torch.optim.Optimizer, parameters: set[int]) -> bool:
    return any(id(parameter) in parameters for group in optimizer.param_groups for parameter in group["params"])


def _is_frozen(model: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in model.parameters())
