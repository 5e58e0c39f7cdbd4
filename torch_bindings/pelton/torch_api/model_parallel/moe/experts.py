"""This rank's experts."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import nn

from pelton._training._torch_plans import watch_plans


class Experts(nn.Module):
    """Copies of one module, each of which serves its own slice of the tokens.

    Their parameters and buffers carry `.expert = True`, by which a wrapped model leaves them to their rank. They carry
    it as well after whatever replaces tensors: copies, pickles, `to_empty`, `load_state_dict(assign=True)`. What else
    puts tensors into an expert (weight_norm, adapters, a new `nn.Parameter`) is marked when the model is wrapped, or by
    `mark`.

    Threads: the trainer's. Owns: the copies.
    """

    holds_experts = True  # by which a wrapped model finds it

    def __init__(self, expert: nn.Module, num_local_experts: int = 1) -> None:
        """Args:
        expert: what is copied; the copies begin with its values.
        num_local_experts: how many there are on this rank.
        """
        super().__init__()
        self.bagua_experts = nn.ModuleList(copy.deepcopy(expert) for _ in range(num_local_experts))
        self.num_local_experts = num_local_experts
        self.register_load_state_dict_post_hook(_mark_loaded)  # type: ignore[no-untyped-call]
        self.mark()

    def mark(self) -> None:
        """Says of all parameters and buffers below that they are experts'."""
        for tensor in itertools.chain(self.parameters(), self.buffers()):
            tensor.expert = True  # type: ignore[attr-defined]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Each expert's outputs; where it returns a tuple, the first member.

        Shape: `[world_size, num_local_experts, capacity, hidden_size]`, and so is the result.
        """
        outputs = []
        for chunk, expert in zip(inputs.chunk(self.num_local_experts, dim=1), self.bagua_experts):
            output = expert(chunk)
            outputs.append(output[0] if isinstance(output, tuple) else output)
        return torch.cat(outputs, dim=1)

    def _apply(self, *arguments: Any, **options: Any) -> Experts:
        """What `to`, `half` and `to_empty` call; some of them make new parameters."""
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        self.mark()
        return self

    def _save_to_state_dict(self, *arguments: Any, **options: Any) -> None:
        """Who is about to save may use torch's planners, to whom experts of all ranks are the same."""
        watch_plans()
        super()._save_to_state_dict(*arguments, **options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What `copy.deepcopy` and `pickle` end with; copies of parameters have lost the attribute."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.mark()


def _mark_loaded(experts: Any, _incompatible_keys: Any) -> None:
    experts.mark()
