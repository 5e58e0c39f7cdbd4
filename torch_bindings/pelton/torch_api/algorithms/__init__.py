"""The communication algorithms, by class and by name."""

from pelton.torch_api.algorithms import gradient_allreduce
from pelton.torch_api.algorithms.base import Algorithm, AlgorithmImpl, GlobalAlgorithmRegistry

__all__ = ["Algorithm", "AlgorithmImpl", "GlobalAlgorithmRegistry", "gradient_allreduce"]
