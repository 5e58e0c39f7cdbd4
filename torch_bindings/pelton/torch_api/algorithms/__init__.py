"""Under Bagua's name: what `pelton._training.algorithms` holds."""

from pelton._training.algorithms.base import Algorithm as Algorithm
from pelton._training.algorithms.base import AlgorithmImpl as AlgorithmImpl
from pelton._training.algorithms.base import GlobalAlgorithmRegistry as GlobalAlgorithmRegistry
from pelton.torch_api.algorithms import async_model_average as async_model_average
from pelton.torch_api.algorithms import base as base
from pelton.torch_api.algorithms import bytegrad as bytegrad
from pelton.torch_api.algorithms import decentralized as decentralized
from pelton.torch_api.algorithms import diloco as diloco
from pelton.torch_api.algorithms import gradient_allreduce as gradient_allreduce
from pelton.torch_api.algorithms import local_sgd as local_sgd
from pelton.torch_api.algorithms import one_bit_adam as one_bit_adam
from pelton.torch_api.algorithms import power_sgd as power_sgd
from pelton.torch_api.algorithms import q_adam as q_adam
from pelton.torch_api.algorithms import zero_one_adam as zero_one_adam
