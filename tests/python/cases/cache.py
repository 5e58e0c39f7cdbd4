"""Caches that several ranks share."""

from __future__ import annotations

from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.errors import FailedPrecondition, InvalidArgument
from pelton.torch_api.contrib import CachedDataset, CacheLoader
from pelton.torch_api.contrib.utils.redis_store import RedisStore, bootstrap_redis_server, shutdown_redis_server

from cases.checks import raises, rank_and_size
from cases.registry import case


def _end(store: Any) -> None:
    """All have used it before it ends."""
    bagua.barrier()
    store.shutdown()


@case(1, 2, 3)
def ranks_share_one_server() -> None:
    rank, size = rank_and_size()
    loader = CacheLoader(dataset_name="shared")
    loader.get(rank, lambda key: torch.full((2,), float(key)))
    bagua.barrier()
    for key in range(size):
        assert torch.equal(loader.get(key, lambda _: None), torch.full((2,), float(key)))
    assert loader.num_keys() == size
    ports = bagua.broadcast_object(loader.store.hosts)  # type: ignore[attr-defined]
    assert ports == RedisStore().hosts == bootstrap_redis_server()
    assert len(ports) == 1
    _end(loader.store)


@case(2)
def servers_are_started_anew_after_a_shutdown() -> None:
    hosts = []
    for _ in range(2):
        store = RedisStore()
        hosts += store.hosts
        bagua.barrier()
        assert store.num_keys() == 0
        bagua.barrier()
        store.set(str(bagua.get_rank()), b"value")
        _end(store)
    assert hosts[0] != hosts[1]


@case(3)
def a_group_has_a_server_of_its_own() -> None:
    group = bagua.new_group([1, 2])
    everyones = RedisStore()
    if bagua.get_rank() == 0:
        with raises(InvalidArgument, "process_group"):
            RedisStore(process_group=group)
    else:
        own = RedisStore(process_group=group)
        assert own.hosts != everyones.hosts
        own.set("a", b"b")
        assert everyones.get("a") is None
    _end(everyones)


@case(3)
def groups_that_overlap_start_servers_in_any_order() -> None:
    """Rank 0 begins with the group of ranks 0 and 2, and asks for all hosts' servers first."""
    groups = [bagua.new_group([0, 1]), bagua.new_group([0, 2])]
    mine = groups[::-1] if bagua.get_rank() == 0 else [g for g in groups if bagua.get_rank() in g.ranks]
    ports: dict[str, int] = {}
    for group in mine:
        for cluster_mode in (True, False) if bagua.get_rank() == 0 else (False, True):
            (host,) = bootstrap_redis_server(process_group=group, cluster_mode=cluster_mode)
            ports[f"{group.group_name} {cluster_mode}"] = host["port"]
    everyones = [bagua.broadcast_object(ports, src) for src in range(3)]
    for group in groups:
        for cluster_mode in (True, False):
            key = f"{group.group_name} {cluster_mode}"
            assert everyones[group.ranks[0]][key] == everyones[group.ranks[1]][key], (key, everyones)
    assert len(set(everyones[0].values())) == 4, everyones
    bagua.barrier()
    shutdown_redis_server()


@case(2)
def data_is_loaded_by_every_rank() -> None:
    data: Any = [torch.full((2,), float(i)) for i in range(20)]
    cached = CachedDataset(data, dataset_name="data", writer_buffer_size=1)
    for _ in range(2):
        assert all(torch.equal(cached[i], data[i]) for i in range(20))
        bagua.barrier()
    assert cached.cache_loader.num_keys() == 20
    _end(cached.cache_loader.store)


@case(2)
def several_ranks_need_a_job() -> None:
    bagua.destroy_process_group()
    with raises(FailedPrecondition, "not initialised"):
        RedisStore()
