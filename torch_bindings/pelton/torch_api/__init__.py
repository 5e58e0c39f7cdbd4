"""The API that training scripts use, under Bagua's names: `import pelton.torch_api as bagua`."""

from pelton.torch_api import algorithms, communication, data_parallel
from pelton.torch_api.communication import (
    ReduceOp,
    allgather,
    allgather_inplace,
    allreduce,
    allreduce_inplace,
    barrier,
    broadcast,
    destroy_process_group,
    init_process_group,
    is_initialized,
    recv,
    reduce,
    reduce_inplace,
    reduce_scatter,
    reduce_scatter_inplace,
    send,
)
from pelton.torch_api.distributed import BaguaModule
from pelton.torch_api.env import get_local_rank, get_local_size, get_rank, get_world_size

__all__ = [
    "BaguaModule",
    "ReduceOp",
    "algorithms",
    "allgather",
    "allgather_inplace",
    "allreduce",
    "allreduce_inplace",
    "barrier",
    "broadcast",
    "communication",
    "data_parallel",
    "destroy_process_group",
    "get_local_rank",
    "get_local_size",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "recv",
    "reduce",
    "reduce_inplace",
    "reduce_scatter",
    "reduce_scatter_inplace",
    "send",
]
