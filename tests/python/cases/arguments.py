"""Arguments that are wrong: one table of calls, what each is told, and that nothing was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pelton
import pelton.torch_api as bagua
import torch
from pelton.errors import InvalidArgument, NotFound
from pelton.torch_api import communication as c

from cases.checks import raises
from cases.registry import case

ONES = torch.ones(2)
FOUR = torch.ones(4)
META = torch.ones(2, device="meta")
SPARSE = torch.eye(2).to_sparse()
HALF = torch.ones(2, dtype=torch.complex32)
ODD = torch.ones(3)

Row = tuple[Callable[[], Any], type[Exception], tuple[str, ...]]


def _wrong(value: Any) -> Any:
    return value


TENSORS: list[Row] = [
    (lambda: bagua.allreduce(ONES, ODD), InvalidArgument, ("allreduce", "2 elements", "recv_tensor 3")),
    (lambda: bagua.allreduce(ONES, ONES.long()), InvalidArgument, ("torch.float32", "torch.int64")),
    (lambda: bagua.allreduce(ONES, _wrong([1.0])), InvalidArgument, ("recv_tensor", "list")),
    (lambda: bagua.allreduce(_wrong(None), ONES), InvalidArgument, ("send_tensor", "NoneType")),
    (lambda: bagua.allreduce_inplace(META), InvalidArgument, ("tensor: is on device meta",)),
    (lambda: bagua.allreduce(ONES, META), InvalidArgument, ("recv_tensor: is on device meta",)),
    (lambda: bagua.allreduce_inplace(HALF), InvalidArgument, ("dtype", "ComplexHalf")),
    (lambda: bagua.allreduce_inplace(ONES, c.ReduceOp.BXOR), InvalidArgument, ("BXOR", "float32")),
    (lambda: bagua.reduce(ONES, ODD, bagua.get_rank()), InvalidArgument, ("reduce", "recv_tensor 3")),
    (lambda: bagua.broadcast(SPARSE), InvalidArgument, ("tensor", "to_dense")),
    (lambda: bagua.broadcast(_wrong([1.0])), InvalidArgument, ("tensor", "list")),
    (lambda: bagua.allgather(ONES, ONES), InvalidArgument, ("allgather", "2 times the first")),
    (lambda: bagua.allgather_inplace(ODD), InvalidArgument, ("3 elements", "2 ranks")),
    (lambda: bagua.reduce_scatter(ODD, ONES), InvalidArgument, ("reduce_scatter", "3", "2 times the second")),
    (lambda: bagua.reduce_scatter_inplace(ODD), InvalidArgument, ("3 elements", "2 ranks")),
    (lambda: bagua.gather(ONES, ONES, bagua.get_rank()), InvalidArgument, ("gather", "2 times the first")),
    (lambda: bagua.gather(ONES, None, bagua.get_rank()), InvalidArgument, ("recv_tensor", "None")),
    (lambda: bagua.gather(META, FOUR, 0), InvalidArgument, ("send_tensor", "meta")),
    (lambda: bagua.gather_inplace(ONES, 3, 0), InvalidArgument, ("gather_inplace", "2 elements", "count=3")),
    (lambda: bagua.gather_inplace(ONES, -1, 0), InvalidArgument, ("count=-1",)),
    (lambda: bagua.scatter(ODD, ONES, bagua.get_rank()), InvalidArgument, ("scatter", "3", "2 times the second")),
    (lambda: bagua.scatter(None, ONES, bagua.get_rank()), InvalidArgument, ("send_tensor", "None")),
    (lambda: bagua.scatter(FOUR, META, 0), InvalidArgument, ("recv_tensor", "meta")),
    (lambda: bagua.scatter_inplace(ONES, 3, 0), InvalidArgument, ("scatter_inplace", "2 elements", "count=3")),
    (lambda: bagua.scatter_inplace(ONES, _wrong(1.0), 0), InvalidArgument, ("count=1.0",)),
    (lambda: bagua.alltoall(ONES, ODD), InvalidArgument, ("alltoall", "recv_tensor 3")),
    (lambda: bagua.alltoall(ODD, ODD.clone()), InvalidArgument, ("alltoall", "3 elements", "2 ranks")),
    (lambda: bagua.alltoall_inplace(ODD), InvalidArgument, ("alltoall_inplace", "3 elements")),
    (lambda: bagua.send(META, 1 - bagua.get_rank()), InvalidArgument, ("tensor", "meta")),
    (lambda: bagua.recv(SPARSE, 1 - bagua.get_rank()), InvalidArgument, ("tensor", "to_dense")),
    (lambda: c.allreduce_coalesced_inplace([ONES, META]), InvalidArgument, ("tensors[1]", "meta")),
    (lambda: c.broadcast_coalesced(_wrong(7)), InvalidArgument, ("tensors", "int")),
    (lambda: pelton.empty(-1), InvalidArgument, ("-1",)),
]


def _v(counts: Any = (1, 1), displs: Any = (0, 1), recv: Any = FOUR) -> Callable[[], None]:
    return lambda: bagua.alltoall_v(ONES, counts, displs, recv, [1, 1], [0, 1])


PARTS: list[Row] = [
    (_v(counts=[1]), InvalidArgument, ("send_counts", "1 entries", "2 ranks")),
    (_v(counts=[1, 1, 1]), InvalidArgument, ("send_counts", "3 entries")),
    (_v(displs=[0]), InvalidArgument, ("send_displs", "1 entries")),
    (_v(counts=[1, -1]), InvalidArgument, ("send_counts[1]=-1",)),
    (_v(counts=[1, 2]), InvalidArgument, ("send_counts[1]=2", "send_displs[1]=1", "2 elements")),
    (_v(displs=[0, 1 << 62]), InvalidArgument, (f"send_displs[1]={1 << 62}", "2 elements")),
    (_v(counts=[1, 1.5]), InvalidArgument, ("send_counts", "1.5")),
    (_v(counts=3), InvalidArgument, ("send_counts=3",)),
    (_v(recv=FOUR.double()), InvalidArgument, ("dtype", "float32", "float64")),
    (_v(recv=META), InvalidArgument, ("recv_tensor", "meta")),
    (lambda: bagua.alltoall_v(FOUR, [2, 2], [0, 2], FOUR, [2, 2], [1, 2]), InvalidArgument, ("overlap", "element 2")),
    (lambda: bagua.alltoall_v_inplace(FOUR, [2, 3], [0, 2]), InvalidArgument, ("send_counts[1]=3", "4 elements")),
    (_v(counts=[2, 2], displs=[0, 0]), InvalidArgument, ("send_counts", "itself", "recv_counts")),
]

RANKS_AND_OPS: list[Row] = [
    (lambda: bagua.broadcast(ONES, 2), InvalidArgument, ("src=2",)),
    (lambda: bagua.broadcast(ONES, root=-1), InvalidArgument, ("root=-1",)),
    (lambda: bagua.broadcast(ONES, _wrong("0")), InvalidArgument, ("src='0'",)),
    (lambda: bagua.reduce(ONES, ONES, 7), InvalidArgument, ("dst=7", "0 to 1")),
    (lambda: bagua.gather(ONES, FOUR, -1), InvalidArgument, ("dst=-1",)),
    (lambda: bagua.scatter(FOUR, ONES, 2), InvalidArgument, ("src=2",)),
    (lambda: bagua.send(ONES, -1), InvalidArgument, ("dst=-1",)),
    (lambda: bagua.send(ONES, bagua.get_rank()), InvalidArgument, ("dst", "itself")),
    (lambda: bagua.recv(ONES, 2), InvalidArgument, ("src=2",)),
    (lambda: c.broadcast_object(1, 5), InvalidArgument, ("src=5",)),
    (lambda: c.broadcast_coalesced([ONES], 5), InvalidArgument, ("src=5",)),
    (lambda: bagua.allreduce_inplace(ONES, _wrong("MEAN")), InvalidArgument, ("op='MEAN'", "AVG")),
    (lambda: bagua.allreduce_inplace(ONES, 5), InvalidArgument, ("op=5",)),
    (lambda: bagua.allreduce(ONES, _wrong(True)), InvalidArgument, ("recv_tensor", "bool")),
    (lambda: bagua.reduce_scatter(FOUR, ONES, _wrong(None)), InvalidArgument, ("op=None",)),
    (lambda: c.allreduce_coalesced_inplace([ONES], 4), InvalidArgument, ("op=4",)),
    (lambda: bagua.barrier(_wrong("world")), InvalidArgument, ("comm='world'",)),
    (lambda: bagua.allgather(ONES, FOUR, _wrong(0)), InvalidArgument, ("comm=0",)),
]

GROUPS: list[Row] = [
    (lambda: bagua.new_group([0, 2]), InvalidArgument, ("ranks=[0, 2]", "2 is not a rank")),
    (lambda: bagua.new_group([0, 0]), InvalidArgument, ("ranks=[0, 0]", "twice")),
    (lambda: bagua.new_group([]), InvalidArgument, ("ranks=[]",)),
    (lambda: bagua.new_group(_wrong(1)), InvalidArgument, ("ranks=1",)),
    (lambda: bagua.new_group(_wrong(["0"])), InvalidArgument, ("'0' is not a rank",)),
    (lambda: bagua.from_torch_group(_wrong("world")), InvalidArgument, ("group='world'",)),
    (lambda: bagua.destroy_process_group(_wrong("world")), InvalidArgument, ("group='world'",)),
    (lambda: c.get_communicator("nobody", "global"), NotFound, ("nobody", "default")),
    (lambda: c.get_communicator("default", "local"), InvalidArgument, ("comm_name='local'", "intra")),
    (lambda: c.get_backend("nothing"), NotFound, ("model_name='nothing'",)),
]


@case(2)
def calls_that_are_refused() -> None:
    for i, (call, kind, words) in enumerate([*TENSORS, *PARTS, *RANKS_AND_OPS, *GROUPS]):
        try:
            with raises(kind, *words):
                call()
        except AssertionError as error:
            raise AssertionError(f"row {i}: {error}") from error
    tensor = torch.ones(3)  # nobody waits for anything, and all works
    bagua.allreduce_inplace(tensor)
    assert tensor.tolist() == [2.0] * 3
    assert ONES.tolist() == [1.0] * 2
    assert FOUR.tolist() == [1.0] * 4
