"""The communication algorithms, by class and by name."""

from pelton._training.algorithms import (
    async_model_average,
    bytegrad,
    decentralized,
    diloco,
    gradient_allreduce,
    local_sgd,
    one_bit_adam,
    power_sgd,
    q_adam,
    zero_one_adam,
)
from pelton._training.algorithms.base import Algorithm, AlgorithmImpl, GlobalAlgorithmRegistry

__all__ = [
    "Algorithm",
    "AlgorithmImpl",
    "GlobalAlgorithmRegistry",
    "async_model_average",
    "bytegrad",
    "decentralized",
    "diloco",
    "gradient_allreduce",
    "local_sgd",
    "one_bit_adam",
    "power_sgd",
    "q_adam",
    "zero_one_adam",
]
