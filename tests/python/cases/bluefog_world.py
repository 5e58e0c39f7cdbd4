"""What `init` makes and `shutdown` ends: ranks, topologies, and what is broadcast between ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pelton.bluefog.torch as bf
import torch
from pelton.bluefog.common.util import env

from cases.bluefog_operations import raises
from cases.registry import case


@case(1, 4)
def ranks_know_their_places() -> None:
    raises(ValueError, "call bluefog.torch.init", bf.size)
    raises(ValueError, "call bluefog.torch.init", lambda: bf.allreduce(torch.ones(1)))
    bf.init()
    assert bf.local_size() == bf.size() and bf.local_rank() == bf.rank()
    assert bf.machine_size() == 1 and bf.machine_rank() == 0 and bf.is_homogeneous()
    assert bf.IsTopologyEquivalent(bf.load_topology(), bf.ExponentialGraph(bf.size()))
    assert bf.load_machine_topology() is None and bf.in_neighbor_machine_ranks() == []
    assert bf.mpi_threads_supported() and not bf.nccl_built() and bf.unified_mpi_window_model_supported()
    bf.set_skip_negotiate_stage(True)
    assert bf.get_skip_negotiate_stage() is True
    assert bf.timeline_start_activity("a", "b") is False and bf.timeline_end_activity("a") is False
    bf.shutdown()
    bf.shutdown()
    raises(ValueError, "call bluefog.torch.init", bf.rank)


@case(4)
def init_may_be_called_again_and_after_shutdown() -> None:
    for _ in range(2):
        bf.init(bf.RingGraph(4))
        assert len(bf.in_neighbor_ranks()) == 2
        bf.init(lambda size: bf.RingGraph(size, connect_style=2), is_weighted=True)
        assert bf.in_neighbor_ranks() == [(bf.rank() - 1) % 4]
        bf.init()
        assert bf.IsTopologyEquivalent(bf.load_topology(), bf.ExponentialGraph(4))
        assert bf.allreduce(torch.ones(1)).item() == 1
        bf.shutdown()
    raises(TypeError, "function of the number of ranks", lambda: bf.init(3))


@case(4)
def topologies_are_compared() -> None:
    bf.init()
    rank = bf.rank()
    before = bf.load_topology()
    graph = bf.RingGraph(4)
    if rank == 2:
        graph[1][2]["weight"] = 0.75
    with_weight = "1 -> 2 has the weight 0.75 here and 0.333" if rank == 2 else "rank 2 of the group: .*1 -> 2"
    raises(ValueError, with_weight, lambda: bf.set_topology(graph, is_weighted=True))
    other = bf.RingGraph(4, connect_style=2) if rank == 3 else bf.RingGraph(4)
    raises(ValueError, "there is no such edge", lambda: bf.set_topology(other))
    raises(ValueError, "is_weighted is", lambda: bf.set_topology(bf.RingGraph(4), is_weighted=rank == 1))
    for wrong in ("ring", bf.RingGraph(3), nx.Graph(), nx.MultiDiGraph(bf.RingGraph(4))):
        raises(
            TypeError,
            "must be a networkx.DiGraph|must have those from 0 to 3|has parallel edges",
            partial(bf.set_topology, wrong),
        )
    raises(ValueError, "topology=None", lambda: bf.set_machine_topology(None))
    weightless = bf.RingGraph(4)
    if rank == 1:
        weightless[1][2]["weight"] = None
    kind, text = (TypeError, "weight is no number") if rank == 1 else (ValueError, "rank 1 of the group: .*no number")
    raises(kind, text, lambda: bf.set_topology(weightless))
    assert bf.IsTopologyEquivalent(bf.load_topology(), before)
    numbers = nx.relabel_nodes(bf.RingGraph(4), {i: np.int64(i) for i in range(4)}) if rank == 1 else bf.RingGraph(4)
    assert bf.set_topology(numbers)
    bf.shutdown()


@case(2)
def other_weights_on_the_same_edges_take_effect() -> None:
    bf.init()
    rank = bf.rank()
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([(0, 0, 0.75), (1, 1, 0.75), (0, 1, 0.25), (1, 0, 0.25)])
    mine = torch.full((1,), float(rank))
    for is_weighted, other in ((False, 0.5), (True, 0.25), (False, 0.5)):
        assert bf.set_topology(graph, is_weighted)
        assert bf.neighbor_allreduce(mine).item() == rank * (1 - other) + (1 - rank) * other
    graph[0][1]["weight"] = 99.0  # the topology keeps a copy
    assert bf.neighbor_allreduce(mine).item() == 0.5
    bf.shutdown()


@case(1, 4)
def the_other_ends_of_edges_are_found() -> None:
    bf.init()
    rank, size = bf.rank(), bf.size()
    after = [(rank + 1) % size] if size > 1 else []
    before = [(rank - 1) % size] if size > 1 else []
    assert bf.InferSourceFromDestinationRanks(after) == before
    assert bf.InferDestinationFromSourceRanks(before) == after
    to = list(range(1, size)) if rank == 0 else []
    found, matrix = bf.InferSourceFromDestinationRanks(to, construct_adjacency_matrix=True)
    assert found == ([] if rank == 0 else [0])
    expected = np.eye(size)
    expected[0] = 1
    assert np.array_equal(matrix, expected / expected.sum(0))
    _, other = bf.InferDestinationFromSourceRanks(found, construct_adjacency_matrix=True)
    assert np.array_equal(matrix, other)
    raises(ValueError, "is not in|rank . of the group", lambda: bf.InferSourceFromDestinationRanks([size]))
    raises(ValueError, "this rank itself|rank . of the group", lambda: bf.InferSourceFromDestinationRanks([rank]))
    bf.shutdown()


@case(2)
def parameters_are_broadcast_and_averaged() -> None:
    bf.init()
    rank = bf.rank()
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    for form in (model.state_dict(), model.parameters(), list(model.named_parameters())):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(rank + 1.0)
        bf.broadcast_parameters(form, root_rank=1)
        assert all(parameter.eq(2).all() for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(rank))
    bf.allreduce_parameters(model.state_dict())
    assert all(parameter.eq(0.5).all() for parameter in model.parameters())
    broadcast: Any = bf.broadcast_parameters
    raises(ValueError, "params", lambda: broadcast(3, 0))
    raises(ValueError, "must hold tensors", lambda: broadcast([3], 0))
    bf.shutdown()


@case(2)
def optimizers_are_broadcast() -> None:
    bf.init()
    rank = bf.rank()
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1 * (rank + 1), momentum=0.9, foreach=None),
        lambda p: torch.optim.AdamW(p, lr=0.1 * (rank + 1), amsgrad=rank == 0),
        lambda p: torch.optim.RMSprop(p, lr=0.1 * (rank + 1)),
    ):
        model = torch.nn.Linear(3, 2)
        optimizer = make(model.parameters())
        if rank == 0:  # rank 1 has no state yet
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        bf.broadcast_optimizer_state(optimizer, root_rank=0)
        assert optimizer.param_groups[0]["lr"] == 0.1
        state = optimizer.state_dict()["state"]
        sums = torch.stack(
            [
                value.double().sum()
                for _, entry in sorted(state.items())
                for value in entry.values()
                if isinstance(value, torch.Tensor)
            ]
        )
        assert torch.equal(bf.broadcast(sums, 0), sums)
    lbfgs = torch.optim.LBFGS(torch.nn.Linear(3, 2).parameters())
    raises(ValueError, "LBFGS", lambda: bf.broadcast_optimizer_state(lbfgs, 0))
    bf.shutdown()


@case(3)
def machines_must_be_of_one_size() -> None:
    with env(BLUEFOG_NODES_PER_MACHINE="2"):
        raises(ValueError, "must divide the number of ranks, 3", bf.init)
    with env(BLUEFOG_NODES_PER_MACHINE="x"):
        raises(ValueError, "BLUEFOG_NODES_PER_MACHINE='x'", bf.init)
    with env(BLUEFOG_NODES_PER_MACHINE=None):
        bf.init()
    assert bf.machine_size() == 1
    bf.shutdown()
