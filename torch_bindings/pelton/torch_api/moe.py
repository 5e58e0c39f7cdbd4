"""`bagua.moe`, as scripts call it: the mixtures of experts of `model_parallel.moe`."""

from pelton.torch_api.model_parallel.moe import MoE, experts, is_moe_param, layer, sharded_moe, utils

__all__ = ["MoE", "experts", "is_moe_param", "layer", "sharded_moe", "utils"]
