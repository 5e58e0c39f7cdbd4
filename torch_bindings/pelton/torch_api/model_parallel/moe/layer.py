"""The layer that models are built of."""

from __future__ import annotations

import torch
from torch import nn

from pelton.errors import InvalidArgument
from pelton.torch_api.model_parallel.moe.experts import Experts
from pelton.torch_api.model_parallel.moe.sharded_moe import AnyGroup, MOELayer, TopKGate, size_of

_POLICIES = (None, "None", "Jitter", "RSample")


class MoE(nn.Module):
    """A mixture of experts: each token goes to one or two of all ranks' experts, which a gate chooses.

    A forward pass communicates, in evaluation mode too: all ranks of the group make it, with equally many tokens.
    Gradients of the experts are sums over the tokens of all ranks, those of everything else in a wrapped model means
    over the ranks; `average_expert_gradients` makes them means as well.

    Threads: the trainer's. Owns: the gate and this rank's experts.
    Source: GShard, arXiv 2006.16668; names and defaults are Bagua's.
    """

    def __init__(
        self,
        hidden_size: int,
        expert: nn.Module,
        num_local_experts: int = 1,
        k: int = 1,
        output_dropout_prob: float = 0.0,
        capacity_factor: float = 1.0,
        eval_capacity_factor: float = 1.0,
        min_capacity: int = 4,
        noisy_gate_policy: str | None = None,
        *,
        process_group: AnyGroup = None,
        average_expert_gradients: bool = False,
    ) -> None:
        """Args:
        hidden_size: of a token, as it comes and as it goes.
        expert: what each expert is a copy of.
        num_local_experts: experts on this rank; all ranks have equally many.
        k: experts that a token goes to, 1 or 2.
        output_dropout_prob: share of the output that is dropped in training.
        capacity_factor: how many tokens an expert takes of each rank, as a multiple of its equal share.
        eval_capacity_factor: the same in evaluation mode.
        min_capacity: the least that an expert takes, where k is 1.
        noisy_gate_policy: None, "None", "Jitter" or "RSample": what blurs the gate in training, where k is 1 (Jitter:
          also where it is 2).
        process_group: the ranks that share their experts; None for all. Of torch's or of ours.
        average_expert_gradients: divides the experts' gradients by the number of ranks.

        Raises:
          InvalidArgument: `k` or `noisy_gate_policy` is something else.
        """
        super().__init__()
        if noisy_gate_policy not in _POLICIES:
            raise InvalidArgument(f"noisy_gate_policy={noisy_gate_policy!r}: must be None, 'Jitter' or 'RSample'")
        self.num_experts = num_local_experts * size_of(process_group)
        gate = TopKGate(
            hidden_size,
            self.num_experts,
            k,
            capacity_factor,
            eval_capacity_factor,
            min_capacity,
            noisy_gate_policy,
        )
        self.bagua_moe = MOELayer(
            gate,
            Experts(expert, num_local_experts),
            num_local_experts,
            process_group,
            average_gradients=average_expert_gradients,
        )
        self.dropout = nn.Dropout(output_dropout_prob)

    def forward(
        self, hidden_states: torch.Tensor, used_token: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sends tokens to experts, and brings what those make of them back. Collective.

        Args:
          hidden_states: the tokens.
          used_token: 1 for each token that is to be served, 0 for padding; None for all.

        Shape: hidden_states `[..., hidden_size]`; used_token one number for each token.

        Returns:
          The output, of hidden_states' shape; zeros for tokens that no expert had room for. A loss that is least when
          the experts have equally much to do, to be added to the model's. How many tokens chose each expert first, as
          a tensor on the tokens' device.

        Raises:
          InvalidArgument: there are less tokens than `min_capacity`, or the ranks have unequal numbers of them.
          DeadlineExceeded, PeerLost, Aborted: not all ranks took part.
        """
        output = self.dropout(self.bagua_moe(hidden_states, used_token))
        return output, self.bagua_moe.l_aux, self.bagua_moe.exp_counts
