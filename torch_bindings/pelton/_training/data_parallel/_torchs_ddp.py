"""torch's DistributedDataParallel around a wrapped model, or within it: both would average the same gradients.

Its reducer copies a gradient into its buckets and back while ours sums it where it lies, so that each of them may read
what the other has half done: the ranks drift apart, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pelton import _C
from pelton._training._parameters import NamedTensors
from pelton._training.algorithms.base import RegisteredAlgorithm
from pelton.errors import FailedPrecondition, InvalidArgument


def check_within(module: nn.Module, trainable: NamedTensors, algorithm: RegisteredAlgorithm | None) -> None:
    """For a model that is being wrapped.

    Args:
      module: it.
      trainable: those of its parameters that will be communicated.
      algorithm: the runtime's that will do so; None: one that is written in Python.

    Raises:
      InvalidArgument: it is, or contains, a DistributedDataParallel that averages the gradient of one of them, as the
        algorithm would.
    """
    if not _averages_gradients(algorithm):
        return
    names = {id(tensor): name for name, tensor in trainable}
    for part in module.modules():
        for tensor in _averaged_by(part) if isinstance(part, DistributedDataParallel) else ():
            if id(tensor) in names:
                raise InvalidArgument(
                    f"model {type(module).__name__}: torch's DistributedDataParallel averages the gradient of "
                    f"'{names[id(tensor)]}' already, and Pelton would do so at the same time; wrap the plain model"
                )


def check_around(trainable: NamedTensors, algorithm: RegisteredAlgorithm | None, model: str) -> None:
    """For a wrapped model whose forward pass begins. Without a DistributedDataParallel it costs a look at its class.

    Args:
      trainable: those of its parameters that are communicated.
      algorithm: as in `check_within`.
      model: its name in errors.

    Raises:
      FailedPrecondition: the pass is within that of a DistributedDataParallel that averages the gradient of one of
        its parameters, as the algorithm does.
    """
    around = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    if around is None or not _averages_gradients(algorithm):
        return
    names = {id(tensor): name for name, tensor in trainable}
    for tensor in _averaged_by(around):
        if id(tensor) in names:
            raise FailedPrecondition(
                f"model {model}: torch's DistributedDataParallel around it averages the gradient of "
                f"'{names[id(tensor)]}', too, and at the same time; call the wrapped model itself (Accelerate's own "
                "class: accelerator.prepare_model(model, evaluation_mode=True); Lightning: strategy='bagua'), or take "
                "the algorithm off by model.bagua_ddp.detach()"
            )


def _averages_gradients(algorithm: RegisteredAlgorithm | None) -> bool:
    """Of an algorithm that is written in Python nobody knows better."""
    return algorithm is None or _C.schedule(algorithm.name, algorithm.options)[1] == "when_ready"


def _averaged_by(ddp: DistributedDataParallel) -> Iterator[nn.Parameter]:
    for name, parameter in ddp.module.named_parameters():
        if parameter.requires_grad and name not in ddp.parameters_to_ignore:
            yield parameter
