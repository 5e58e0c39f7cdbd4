"""Batch normalisation whose mean and variance are those of all ranks' batches together."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from pelton import _C
from pelton._training import _session, communication, env
from pelton._training._arguments import ReduceOp
from pelton._training._groups import AnyGroup, own_group
from pelton._training._portable import Portable
from pelton.errors import FailedPrecondition, InvalidArgument

__all__ = ["SyncBatchNorm"]

_Module = TypeVar("_Module", bound=nn.Module)
# What ranks tell each other is added in it: a count is exact to 2^53, and sums of one rank's lose nothing more.
_SENT = torch.float64


class SyncBatchNorm(_BatchNorm):
    """BatchNorm over the batches of all ranks of a group, as if they were one batch, on the CPU and on GPUs.

    Ranks may have batches of different sizes, an empty one among them. A forward pass in training is one exchange, a
    backward pass another one; evaluation is each rank's own affair. Gradients of weight and bias are this rank's part
    of those of the whole batch, as those of any other layer: wrapping the model brings them together.

    Threads: the trainer's and autograd's. Owns: parameters and statistics, as BatchNorm.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: AnyGroup = None,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Not collective.

        Args:
          num_features: the size C of the input's second dimension.
          eps: added to the variance.
          momentum: how far running statistics move towards those of a batch; None: they are the mean over all batches.
          affine: whether there are a weight and a bias to learn.
          track_running_stats: whether there are running statistics; without, evaluation takes those of its own batch.
          process_group: the ranks whose batches count as one, this one among them; None for all.
          device: where parameters and statistics are made.
          dtype: of what type they are.
        """
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.process_group = process_group
        self._has_lost_group = False  # in a pickle

    def __getstate__(self) -> dict[str, Any]:
        """Copies have the same group, pickles none: a group is of this job alone."""
        lost = self._has_lost_group or self.process_group is not None
        return {**self.__dict__, "process_group": Portable(self.process_group), "_has_lost_group": lost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See `__getstate__`."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.process_group = state["process_group"].group
        self._has_lost_group = state["_has_lost_group"] and self.process_group is None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises a batch. In training collective over the group, and so is its backward pass.

        Shape: [N, C] or [N, C, ...]; all but N as on the other ranks, N 0 or more.

        Raises:
          InvalidArgument: the input has another shape, or all ranks together have one value a channel or none.
          FailedPrecondition: there are several ranks, and the process group is not initialised; or the layer was
            pickled with a group of some ranks, and has not been given one since.
          DeadlineExceeded, PeerLost, Aborted: the exchange could not be completed; the text names the ranks.
        """
        self._check_input_dim(input)
        return self._normalized_together(input) if self.training else super().forward(input)

    @_disable_dynamo
    def _normalized_together(self, input: torch.Tensor) -> torch.Tensor:
        communicator = self._communicator()
        if communicator is None or communicator.nranks() == 1:
            return super().forward(input)
        normalized: torch.Tensor
        normalized, mean, variance, count = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, communicator
        )
        self._track(mean, variance, count)
        return normalized

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.size(1) != self.num_features:
            raise InvalidArgument(
                f"input: has shape {list(input.shape)}; it must be [N, {self.num_features}] or "
                f"[N, {self.num_features}, ...], as num_features={self.num_features}"
            )

    def _communicator(self) -> _C.Communicator | None:
        """None where there is nobody else; the layer works in a program of one process without any job."""
        if self.process_group is None and not _session.is_initialized() and env.get_world_size() == 1:
            return None
        if self.process_group is None and self._has_lost_group:
            raise FailedPrecondition(
                "this layer was pickled, and has lost the group whose batches it took together: set `process_group` to "
                "the right one, new_group() for all ranks"
            )
        communicator: _C.Communicator = own_group(self.process_group).get_global_communicator()
        return communicator

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        """Moves the running statistics; that of the variance has no bias, as BatchNorm's.

        Args:
          mean: of all ranks' batches.
          variance: with the bias.
          count: values a channel.
        """
        if self.running_mean is None or self.running_var is None:
            return
        share = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                share = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        for running, found in ((self.running_mean, mean), (self.running_var, unbiased)):
            wide = running.to(_SENT)
            running.copy_(wide + share * (found - wide))

    @classmethod
    def convert_sync_batchnorm(cls, module: _Module, process_group: AnyGroup = None) -> Any:
        """Puts a SyncBatchNorm in the place of every BatchNorm of a model, torch's SyncBatchNorm among them.

        To be called before the model is wrapped. Parameters and statistics stay the same objects, so that an optimizer
        that was made before steps them still; a layer that is used twice stays one layer. Hooks on the old layers are
        not taken over.

        Args:
          module: the model, or one layer.
          process_group: as for the layer.

        Returns:
          The same object, or if it is such a layer itself, a new one.

        Raises:
          InvalidArgument: a layer is lazy and has no shape yet; run a forward pass first.
        """
        return _converted(cls, module, process_group, "", {})


_Known = dict[int, tuple[nn.Module, nn.Module]]  # by id of the first; both, so that no id is used again meanwhile


def _converted(cls: type[SyncBatchNorm], module: Any, group: AnyGroup, name: str, known: _Known) -> Any:
    if id(module) not in known:
        is_one = isinstance(module, _BatchNorm)
        known[id(module)] = (module, _of(cls, module, group, name) if is_one else module)
        for key, child in module._modules.items():
            if child is not None:
                module._modules[key] = _converted(cls, child, group, f"{name}.{key}".lstrip("."), known)
    return known[id(module)][1]


def _of(cls: type[SyncBatchNorm], layer: _BatchNorm, group: AnyGroup, name: str) -> SyncBatchNorm:
    """A layer with another one's parameters and statistics."""
    tensors = {**layer._parameters, **layer._buffers}
    if any(tensor is not None and is_lazy(tensor) for tensor in tensors.values()):
        raise InvalidArgument(f"module: '{name or type(layer).__name__}' has no shape yet; run a forward pass before")
    made = cls(
        layer.num_features,
        layer.eps,
        layer.momentum,
        layer.affine,
        layer.track_running_stats,
        group,
        device="meta",
    )
    for key in made._parameters:
        made._parameters[key] = layer._parameters.get(key)
    for key in made._buffers:
        made._buffers[key] = layer._buffers.get(key)
    return made.train(layer.training)


class _Normalize(torch.autograd.Function):
    """What a training pass computes. Threads: autograd's. Owns: nothing."""

    @staticmethod
    def forward(
        context: Any,
        given: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        communicator: _C.Communicator,
    ) -> tuple[torch.Tensor, ...]:
        mean, variance, count = _statistics(given, communicator)
        kind = _wide(given.dtype)
        inverse = torch.rsqrt(variance + eps)
        factor, term = (None if part is None else part.detach().to(kind) for part in (weight, bias))
        normalized = functional.batch_norm(given, mean.to(kind), variance.to(kind), factor, term, eps=eps)
        context.save_for_backward(given, weight, mean, inverse, count)
        context.communicator = communicator
        context.mark_non_differentiable(mean, variance, count)
        return normalized, mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        given, weight, mean, inverse, count = context.saved_tensors
        kind = _wide(given.dtype)
        centred = given.to(kind) - _along(mean.to(kind), given)
        wide = gradient.to(kind)
        dims = _all_but_channels(given)
        sums = torch.stack([wide.sum(dims), (wide * centred).sum(dims)]).to(_SENT)
        own_sum, own_product = sums.unbind()
        needs_input, needs_weight, needs_bias = context.needs_input_grad[:3]
        found = [(own_product * inverse).to(weight.dtype) if needs_weight else None]
        found.append(own_sum.to(weight.dtype) if needs_bias else None)
        if not needs_input:  # of the first layer, on all ranks alike
            return None, *found, None, None
        own_gradient = _input_gradient(context, wide, centred, sums.clone(), weight, inverse, count)
        return own_gradient.to(given.dtype), *found, None, None


def _input_gradient(
    context: Any,
    gradient: torch.Tensor,
    centred: torch.Tensor,
    sums: torch.Tensor,
    weight: torch.Tensor | None,
    inverse: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    """What moves an input, its part in the mean and the variance of all ranks' batches included.

    Source: Ioffe and Szegedy 2015, arXiv 1502.03167, section 3.
    """
    communication.allreduce_inplace(sums, ReduceOp.SUM, context.communicator)
    mean_gradient, mean_product = (sums / count).unbind()
    scale = inverse if weight is None else inverse * weight.detach().to(_SENT)
    kind = gradient.dtype
    moved = gradient - _along(mean_gradient.to(kind), gradient)
    moved -= centred * _along((mean_product * inverse * inverse).to(kind), gradient)
    return moved * _along(scale.to(kind), gradient)


def _statistics(given: torch.Tensor, communicator: _C.Communicator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, variance with bias, and count of values a channel of all ranks' batches; the same bits on all ranks.

    Each rank tells its own three, and all combine them in the order of the ranks: sums of squares alone would lose
    what is small beside the mean.

    Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
    """
    channels = given.size(1)
    own_count = given.numel() // max(1, channels)
    own = torch.zeros(2 * channels + 1, dtype=_SENT, device=given.device)
    own[0] = own_count
    if own_count > 0:
        variance, mean = torch.var_mean(given.detach().to(_wide(given.dtype)), _all_but_channels(given), correction=0)
        own[1:] = torch.cat([mean, variance])
    everyones = torch.empty(communicator.nranks(), own.numel(), dtype=_SENT, device=given.device)
    communication.allgather(own, everyones, communicator)
    counts, means, variances = torch.split(everyones, [1, channels, channels], dim=1)
    count = counts.sum()
    if float(count) <= 1:  # waits for a GPU, as BatchNorm would not; but what follows would be no number
        raise InvalidArgument(f"input: all ranks together have {float(count):.0f} values a channel; training needs two")
    mean = (counts * means).sum(0) / count
    squares = (counts * (variances + (means - mean).square())).sum(0)
    return mean, squares / count, count


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums over a batch are made."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _all_but_channels(given: torch.Tensor) -> list[int]:
    return [dim for dim in range(given.dim()) if dim != 1]


def _along(values: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Values of the channels, as what is added to each element."""
    return values.view([-1 if dim == 1 else 1 for dim in range(given.dim())])
