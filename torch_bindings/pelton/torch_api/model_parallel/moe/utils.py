"""What tells an expert's tensors from the others."""

from __future__ import annotations

import torch


def is_moe_param(param: torch.Tensor) -> bool:
    """Whether a parameter belongs to an expert: it stays this rank's own, and no algorithm communicates it."""
    return bool(getattr(param, "expert", False))
