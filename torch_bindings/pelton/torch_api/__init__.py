"""The API that training scripts use, under Bagua's names: `import pelton.torch_api as bagua`.

It stands on `pelton._training`, as `pelton.wrap` does. Importing it puts `with_bagua` on `torch.nn.Module`, the methods
of `BaguaTensor` on `torch.Tensor`, and those of Bagua's communicators on the runtime's.
"""

from pelton._training.communication import (
    ReduceOp,
    RepeatedInitializationError,
    allgather,
    allgather_inplace,
    allreduce,
    allreduce_inplace,
    alltoall,
    alltoall_inplace,
    alltoall_v,
    alltoall_v_inplace,
    barrier,
    broadcast,
    broadcast_object,
    destroy_process_group,
    from_torch_group,
    gather,
    gather_inplace,
    get_backend,
    init_process_group,
    is_initialized,
    new_group,
    recv,
    reduce,
    reduce_inplace,
    reduce_scatter,
    reduce_scatter_inplace,
    scatter,
    scatter_inplace,
    send,
)
from pelton._training.env import get_local_rank, get_local_size, get_rank, get_world_size
from pelton._training.tensor import BaguaTensor
from pelton.torch_api import (
    _raw_communicator,
    algorithms,
    checkpoint,
    communication,
    contrib,
    data_parallel,
    distributed,
    moe,
    tensor,
    utils,
)
from pelton.torch_api.distributed import BaguaModule, bagua_init

__all__ = [
    "BaguaModule",
    "BaguaTensor",
    "ReduceOp",
    "RepeatedInitializationError",
    "algorithms",
    "allgather",
    "allgather_inplace",
    "allreduce",
    "allreduce_inplace",
    "alltoall",
    "alltoall_inplace",
    "alltoall_v",
    "alltoall_v_inplace",
    "bagua_init",
    "barrier",
    "broadcast",
    "broadcast_object",
    "checkpoint",
    "communication",
    "contrib",
    "data_parallel",
    "destroy_process_group",
    "from_torch_group",
    "gather",
    "gather_inplace",
    "get_backend",
    "get_local_rank",
    "get_local_size",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "moe",
    "new_group",
    "recv",
    "reduce",
    "reduce_inplace",
    "reduce_scatter",
    "reduce_scatter_inplace",
    "scatter",
    "scatter_inplace",
    "send",
    "utils",
]

distributed.install()
tensor.install()
_raw_communicator.install()
