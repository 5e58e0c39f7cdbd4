"""Gates that choose experts for tokens, and the layer that brings tokens to experts of other ranks and back.

Letters of shapes: s tokens of this rank, e experts of all ranks, c an expert's capacity, m the size of a token.
Source: GShard, arXiv 2006.16668; rules, names and random numbers are those of Bagua 0.9.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._compile import _disable_dynamo
from torch.nn import functional

from pelton._training import _session, communication, env
from pelton._training._groups import AnyGroup
from pelton._training._portable import Portable
from pelton._training.data_parallel.distributed import to_bagua_process_group
from pelton.errors import FailedPrecondition, InvalidArgument

__all__ = [
    "AnyGroup",
    "MOELayer",
    "TopKGate",
    "gumbel_rsample",
    "multiplicative_jitter",
    "size_of",
    "top1gating",
    "top2gating",
]

Gating = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def multiplicative_jitter(x: torch.Tensor, device: torch.device, epsilon: float = 1e-2) -> torch.Tensor:
    """Multiplies each element by a random number between 1 - epsilon and 1 + epsilon.

    Args:
      x: what is blurred.
      device: where the numbers are drawn: that of `x`.
      epsilon: 0 leaves `x` as it is.
    """
    return x if epsilon == 0 else x * _uniform(1.0 - epsilon, 1.0 + epsilon, x.shape, device)


def gumbel_rsample(shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """Random numbers of Gumbel's distribution, the same as torch.distributions draws them from the same state."""
    limits = torch.finfo(torch.float32)
    return -torch.log(-torch.log(_uniform(limits.tiny, 1.0 - limits.eps, shape, device)))


def _uniform(low: float, high: float, shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """In [low, high), in float32. The bounds are on the CPU, so that nothing waits for a GPU's stream."""
    lowest, highest = (torch.tensor(bound, dtype=torch.float32, device="cpu") for bound in (low, high))
    return lowest + torch.rand(shape, dtype=torch.float32, device=device) * (highest - lowest)


def top1gating(
    logits: torch.Tensor,
    capacity_factor: float,
    min_capacity: int,
    used_token: torch.Tensor | None = None,
    noisy_gate_policy: str | None = None,
) -> Gating:
    """Sends each token to the expert of its largest logit. Of those that an expert has no room for, chance decides.

    Args:
      logits: of this rank's tokens.
      capacity_factor: an expert takes `ceil(s / e * capacity_factor)` tokens, or `min_capacity` if that is more.
      min_capacity: see above.
      used_token: 1 for each token that is to be served, else 0; None for all.
      noisy_gate_policy: "RSample" adds noise before the choice; the weights are without it.

    Shape: logits `[s, e]`, used_token `[s]`.

    Returns:
      The balance loss; the weights `[s, e, c]` by which outputs are to be combined, which are softmax's; where they
      are not zero; how many tokens chose each expert `[e]`, before any was dropped.

    Raises:
      InvalidArgument: there are less tokens than `min_capacity`.
    """
    tokens, experts = logits.shape
    if tokens < min_capacity:
        raise InvalidArgument(
            f"{tokens} tokens are less than min_capacity={min_capacity}: pass a smaller min_capacity, 0 for none, or "
            "larger batches"
        )
    noisy = logits + gumbel_rsample(logits.shape, logits.device) if noisy_gate_policy == "RSample" else None
    gates = functional.softmax(logits, dim=1)
    capacity = max(math.ceil((tokens / experts) * capacity_factor), min_capacity)
    mask = _masked(_one_hot((gates if noisy is None else noisy).argmax(dim=1), experts), used_token)
    l_aux = (gates.mean(dim=0) * mask.float().mean(dim=0)).sum() * experts
    lots = mask * torch.rand(mask.shape, dtype=torch.float32, device=mask.device)
    winners = lots.topk(min(capacity, tokens), dim=0).indices
    kept = mask * torch.zeros_like(mask).scatter_(0, winners, 1)
    combine = _combine(gates * kept, kept, kept.cumsum(dim=0) - 1, capacity)
    return l_aux, combine, combine.bool(), mask.sum(dim=0).detach()


def top2gating(logits: torch.Tensor, capacity_factor: float, used_token: torch.Tensor | None = None) -> Gating:
    """Sends each token to two experts: that of the largest logit, and that of the largest of the others after noise.

    An expert takes `ceil(2 * s / e * capacity_factor)` tokens: first those that chose it first, in their order, then
    those that chose it second. The two weights add up to 1, as far as both experts had room.

    Args:
      logits: of this rank's tokens.
      capacity_factor: see above.
      used_token: 1 for each token that is to be served, else 0; None for all.

    Shape: logits `[s, e]`, used_token `[s]`.

    Returns:
      As `top1gating`; loss and counts are of the first choices.
    """
    tokens, experts = logits.shape
    gates = functional.softmax(logits, dim=1)
    capacity = math.ceil((2 * tokens / experts) * capacity_factor)
    chosen = _one_hot(gates.argmax(dim=1), experts)
    noisy = logits + gumbel_rsample(logits.shape, logits.device)
    others = noisy.masked_fill(chosen.bool(), float("-inf"))
    first, second = _masked(chosen, used_token), _masked(_one_hot(others.argmax(dim=1), experts), used_token)
    l_aux = (gates.mean(dim=0) * first.float().mean(dim=0)).mean() * experts * experts
    places = first.cumsum(dim=0) - 1, second.cumsum(dim=0) - 1 + first.sum(dim=0, keepdim=True)
    kept = [mask * (place < capacity) for mask, place in zip((first, second), places)]
    weights = [(gates * mask).sum(dim=1) for mask in kept]
    total = (weights[0] + weights[1]).clamp(min=torch.finfo(gates.dtype).eps)
    parts = [
        _combine((weight / total).unsqueeze(1) * mask, mask, place, capacity)
        for weight, mask, place in zip(weights, kept, places)
    ]
    combine = parts[0] + parts[1]
    return l_aux, combine, combine.bool(), first.sum(dim=0).detach()


def _one_hot(indices: torch.Tensor, experts: int) -> torch.Tensor:
    """Unlike torch's it looks at no value, for which a GPU's stream would have to be waited for."""
    zeros = torch.zeros(*indices.shape, experts, dtype=torch.int64, device=indices.device)
    return zeros.scatter_(-1, indices.unsqueeze(-1), 1)


def _masked(mask: torch.Tensor, used_token: torch.Tensor | None) -> torch.Tensor:
    return mask if used_token is None else mask * used_token.reshape(-1, 1).to(mask.dtype)


def _combine(gates: torch.Tensor, mask: torch.Tensor, places: torch.Tensor, capacity: int) -> torch.Tensor:
    """Weights by token, expert and place. Shape: `[s, e]` three times; the result is `[s, e, c]`."""
    place = (places * mask).sum(dim=1)
    return torch.einsum("se,sc->sec", gates, _one_hot(place, capacity).to(gates.dtype))


class TopKGate(nn.Module):
    """Scores experts for tokens by one linear layer in float32, and lets `top1gating` or `top2gating` choose.

    Threads: the trainer's. Owns: the layer.
    """

    wg: nn.Linear

    def __init__(
        self,
        model_dim: int,
        num_experts: int,
        k: int = 1,
        capacity_factor: float = 1.0,
        eval_capacity_factor: float = 1.0,
        min_capacity: int = 4,
        noisy_gate_policy: str | None = None,
    ) -> None:
        """Args:
        model_dim: size of a token.
        num_experts: of all ranks.
        k: how many experts a token goes to, 1 or 2.
        capacity_factor: see `top1gating`; in training.
        eval_capacity_factor: in evaluation mode.
        min_capacity: see `top1gating`.
        noisy_gate_policy: in training; "Jitter" blurs the tokens, "RSample" the scores.

        Raises:
          InvalidArgument: `k` is something else.
        """
        super().__init__()
        if k not in (1, 2):
            raise InvalidArgument(f"k={k!r}: must be 1 or 2, the number of experts that a token goes to")
        self.wg = nn.Linear(model_dim, num_experts, bias=False).float()
        self.k = k
        self.capacity_factor = capacity_factor
        self.eval_capacity_factor = eval_capacity_factor
        self.min_capacity = min_capacity
        self.noisy_gate_policy = noisy_gate_policy

    def forward(self, input: torch.Tensor, used_token: torch.Tensor | None = None) -> Gating:
        """See `top1gating`. Shape: input `[s, m]`, used_token `[s]`."""
        if self.wg.weight.dtype != torch.float32:
            self.wg = self.wg.float()
        with _without_autocast(input.device.type):
            return self._chosen(input.float(), used_token)

    def _chosen(self, tokens: torch.Tensor, used_token: torch.Tensor | None) -> Gating:
        if self.noisy_gate_policy == "Jitter" and self.training:
            tokens = multiplicative_jitter(tokens, tokens.device)
        logits = self.wg(tokens)
        factor = self.capacity_factor if self.training else self.eval_capacity_factor
        if self.k == 2:
            return top2gating(logits, factor, used_token)
        policy = self.noisy_gate_policy if self.training else None
        return top1gating(logits, factor, self.min_capacity, used_token, policy)

    def _apply(self, *arguments: Any, **options: Any) -> TopKGate:
        """`half` and `to` leave the layer in float32, before a wrapping registers its dtype."""
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        self.wg.float()
        return self


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Half types would round the scores, so that another expert may be the best."""
    # Asks whether it is on, too, because autocast's class refuses to be made for devices that lack parts of it.
    if not (torch.amp.autocast_mode.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)):
        return contextlib.nullcontext()
    return torch.autocast(device_type, enabled=False)


class MOELayer(nn.Module):
    """Brings each token to the experts that the gate chooses for it, on whatever rank those are, and back.

    Threads: the trainer's. Owns: the gate and this rank's experts; after a forward pass `l_aux` and `exp_counts`.
    """

    shares_experts = True  # by which a wrapped model finds it

    def __init__(
        self,
        gate: nn.Module,
        experts: nn.Module,
        num_local_experts: int,
        group: AnyGroup = None,
        *,
        average_gradients: bool = False,
    ) -> None:
        """Args:
        gate: as `TopKGate`, for the experts of all ranks.
        experts: as `Experts`.
        num_local_experts: how many experts are on this rank, and on each.
        group: the ranks that share their experts; None for all. Of torch's or of ours.
        average_gradients: the experts' gradients are divided by the number of ranks.
        """
        super().__init__()
        self.gate = gate
        self.experts = experts
        self.num_local_experts = num_local_experts
        self.group = group
        self.world_size = size_of(group)
        self.average_gradients = average_gradients
        self.l_aux: Any = None
        self.exp_counts: Any = None

    def forward(self, input: torch.Tensor, used_token: torch.Tensor | None = None) -> torch.Tensor:
        """See `MoE.forward`. Shape: input `[..., m]`, and so is the result."""
        size = input.shape[-1]
        tokens = input.reshape(-1, size)
        self.l_aux, combine, dispatch, self.exp_counts = self._gated(tokens, used_token)
        sent = torch.einsum("sec,sm->ecm", dispatch.type_as(input), tokens)
        answers = self._exchanged(self._answers(self._exchanged(sent)))
        answers = answers.reshape(self.world_size * self.num_local_experts, -1, size)
        return torch.einsum("sec,ecm->sm", combine.type_as(input), answers).reshape(input.shape)

    @property
    def ranks(self) -> list[int]:
        """The ranks that share their experts, by their numbers in the job, ascending."""
        if self.group is None:
            return list(range(env.get_world_size()))
        if isinstance(self.group, dist.ProcessGroup):
            return sorted(dist.get_process_group_ranks(self.group))
        return self.group.ranks

    def _gated(self, tokens: torch.Tensor, used_token: torch.Tensor | None) -> Gating:
        """A rank whose gate fails makes the exchange all the same, with what nobody else sends, so that the other ranks
        get an error in the same pass and do not wait for this rank's next one.
        """
        try:
            found: Gating = self.gate(tokens, used_token)
        except Exception:
            with contextlib.suppress(Exception):
                self._exchanged(torch.zeros(self.world_size, dtype=torch.uint8, device=tokens.device))
            raise
        return found

    def _answers(self, received: torch.Tensor) -> torch.Tensor:
        """What this rank's experts make of everybody's tokens. Shape: `[world_size * local, c, m]`."""
        tokens = received.reshape(self.world_size, self.num_local_experts, -1, received.shape[-1])
        if self.average_gradients:
            tokens = _scaled(tokens, self.world_size)
        answers: torch.Tensor = self.experts(tokens)
        if answers.shape != tokens.shape:
            raise InvalidArgument(
                f"the experts made {list(answers.shape)} of tokens of shape {list(tokens.shape)}: what an expert "
                "returns must be of the size that it takes"
            )
        return _scaled(answers, 1 / self.world_size) if self.average_gradients else answers

    def _exchanged(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.world_size == 1:
            return tensor
        return _all_to_all(tensor, self.group, self.world_size)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have neither the last pass's results, which belong to a graph, nor torch's groups."""
        return {**self.__dict__, "l_aux": None, "exp_counts": None, "group": Portable(self.group)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See `__getstate__`."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.group = state["group"].group


def size_of(group: AnyGroup) -> int:
    """Number of a group's ranks; None stands for all, of whom the launcher has told.

    Args:
      group: one of torch's or of ours.
    """
    if group is None:
        return env.get_world_size()
    return dist.get_world_size(group) if isinstance(group, dist.ProcessGroup) else len(group.ranks)


@_disable_dynamo
def _all_to_all(tensor: torch.Tensor, group: AnyGroup, world_size: int) -> torch.Tensor:
    """Gives each rank its chunk of the first dimension; gradients go the way back."""
    if not _session.is_initialized():
        raise FailedPrecondition(
            f"this layer's experts are on {world_size} ranks, and the process group is not initialised: call "
            "init_process_group() first"
        )
    communicator = to_bagua_process_group(group).get_global_communicator()
    if communicator.nranks() != world_size:
        raise FailedPrecondition(
            f"this layer was made for {world_size} ranks, and its group has {communicator.nranks()}: make it anew, or "
            "set `group` to the right one (a pickled layer has lost it)"
        )
    result: torch.Tensor = _AllToAll.apply(tensor, communicator)  # type: ignore[no-untyped-call]
    return result


class _AllToAll(torch.autograd.Function):
    """The exchange, whose gradient is the same exchange. Threads: autograd's. Owns: nothing."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, communicator: Any) -> torch.Tensor:
        context.communicator = communicator
        source = tensor.detach().contiguous()
        received = torch.empty_like(source)
        communication.alltoall(source, received, communicator)
        return received

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        result: torch.Tensor = _AllToAll.apply(gradients[0], context.communicator)  # type: ignore[no-untyped-call]
        return result, None


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor itself, whose gradient is multiplied by a factor on its way back."""
    result: torch.Tensor = _ScaledGradient.apply(tensor, factor)  # type: ignore[no-untyped-call]
    return result


class _ScaledGradient(torch.autograd.Function):
    """See `_scaled`. Threads: autograd's. Owns: nothing."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        context.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * context.factor, None
