"""Mixtures of experts, one share of the experts on each rank."""

from pelton.torch_api.model_parallel.moe.layer import MoE
from pelton.torch_api.model_parallel.moe.utils import is_moe_param

__all__ = ["MoE", "is_moe_param"]
