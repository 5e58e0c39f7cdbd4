"""Groups of ranks and what their ranks say to each other: every collective, send and receive, on CPU tensors.

The parts: groups (`_groups`), operations of all ranks (`_collectives`) and between some (`_exchanges`), many tensors
at once (`_packed`), Python values (`_objects`).
"""

from __future__ import annotations

from pelton._training._arguments import ReduceOp
from pelton._training._collectives import (
    allgather,
    allgather_inplace,
    allreduce,
    allreduce_inplace,
    barrier,
    broadcast,
    reduce,
    reduce_inplace,
    reduce_scatter,
    reduce_scatter_inplace,
)
from pelton._training._exchanges import (
    alltoall,
    alltoall_inplace,
    alltoall_v,
    alltoall_v_inplace,
    gather,
    gather_inplace,
    recv,
    scatter,
    scatter_inplace,
    send,
)
from pelton._training._groups import (
    BaguaProcessGroup,
    CommMember,
    _get_default_group,
    _torch_to_bagua_pg_map,
    comm,
    destroy_process_group,
    from_torch_group,
    get_communicator,
    new_group,
)
from pelton._training._model_backend import ModelBackend, get_backend
from pelton._training._objects import broadcast_object
from pelton._training._packed import allreduce_coalesced_inplace, broadcast_coalesced
from pelton._training._session import init_process_group, is_initialized
from pelton.errors import RepeatedInitializationError

__all__ = [
    "BaguaProcessGroup",
    "CommMember",
    "ModelBackend",
    "ReduceOp",
    "RepeatedInitializationError",
    "_get_default_group",
    "_torch_to_bagua_pg_map",
    "allgather",
    "allgather_inplace",
    "allreduce",
    "allreduce_coalesced_inplace",
    "allreduce_inplace",
    "alltoall",
    "alltoall_inplace",
    "alltoall_v",
    "alltoall_v_inplace",
    "barrier",
    "broadcast",
    "broadcast_coalesced",
    "broadcast_object",
    "comm",
    "destroy_process_group",
    "from_torch_group",
    "gather",
    "gather_inplace",
    "get_backend",
    "get_communicator",
    "init_process_group",
    "is_initialized",
    "new_group",
    "recv",
    "reduce",
    "reduce_inplace",
    "reduce_scatter",
    "reduce_scatter_inplace",
    "scatter",
    "scatter_inplace",
    "send",
]
