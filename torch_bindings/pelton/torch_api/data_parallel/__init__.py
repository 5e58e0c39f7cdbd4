"""Under Bagua's name: what `pelton._training.data_parallel` holds."""

from pelton._training.data_parallel import BaguaDistributedDataParallel as BaguaDistributedDataParallel
from pelton._training.data_parallel import DistributedDataParallel as DistributedDataParallel
from pelton._training.data_parallel import DistributedDataParallel_V1_9_0 as DistributedDataParallel_V1_9_0
from pelton.torch_api.data_parallel import bagua_distributed as bagua_distributed
from pelton.torch_api.data_parallel import distributed as distributed
from pelton.torch_api.data_parallel import functional as functional
