"""The store on the coordinator, in the patterns of PyTorch's own store tests."""

from __future__ import annotations

import datetime
import threading

import pelton.torch_api as bagua
import torch.distributed as dist
from pelton.distributed import Store
from pelton.errors import InvalidArgument
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # exported on a condition

from cases.checks import raises, rank_and_size
from cases.registry import case


def _short(milliseconds: int = 50) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=milliseconds)


@case(1)
def set_get_and_count() -> None:
    store = Store()
    others = store.num_keys()  # Pelton keeps a key of its own there
    assert isinstance(store, dist.Store)  # type: ignore[attr-defined]
    store.add("key", 1)
    store.add("key", 2)
    store.set("key0", "value0")
    store.set("key1", b"\x00\xff bytes")
    assert store.get("key") == b"3"
    assert store.get("key0") == b"value0"
    assert store.get("key1") == b"\x00\xff bytes"
    assert store.num_keys() == others + 3
    assert store.check(["key", "key0"])
    assert not store.check(["key", "absent"])
    assert store.delete_key("key0")
    assert not store.delete_key("key0")
    assert store.num_keys() == others + 2
    assert store.add("negative", -5) == -5
    with raises(dist.DistStoreError, "key0"):
        store.set_timeout(_short())
        store.get("key0")


@case(1)
def compare_and_set() -> None:
    store = Store()
    assert store.compare_set("key0", "wrong", "new") == b"wrong"
    store.set("key0", "value0")
    assert store.compare_set("key0", "wrong", "new") == b"value0"
    assert store.compare_set("key0", "value0", "new") == b"new"
    assert store.get("key0") == b"new"
    assert store.compare_set("key1", "", "first") == b"first"


@case(1)
def the_extended_interface() -> None:
    store = Store()
    assert store.has_extended_api()
    store.append("list", "a")
    store.append("list", "b")
    store.append("list", "b")
    assert store.get("list") == b"abb"
    store.multi_set(["x", "y"], ["1", "2"])
    assert store.multi_get(["y", "x"]) == [b"2", b"1"]
    with raises(InvalidArgument, "multi_set: 2 keys, but 1 values"):
        store.multi_set(["x", "y"], ["1"])
    with raises(InvalidArgument, "key: has 0 bytes"):
        store.set("", "value")
    clone = store.clone()
    clone.set("x", "3")
    assert store.get("x") == b"3"
    assert store.timeout == datetime.timedelta(seconds=300)


@case(1)
def waits_end_in_time() -> None:
    store = Store(_short())
    with raises(dist.DistStoreError, "nobody"):
        store.wait(["nobody"])
    store.set("somebody", "does")
    with raises(dist.DistStoreError, "sets this", "20ms"):
        store.wait(["somebody", "sets this"], _short(20))
    threading.Timer(0.1, store.set, ("late", "value")).start()
    store.wait(["late"], datetime.timedelta(seconds=20))
    with raises(InvalidArgument, "timeout=0"):
        Store(_short(0))


@case(1)
def many_keys_at_once_and_large_values() -> None:
    store = Store()
    keys = [f"key{i}" for i in range(1500)]  # more than a request of the coordinator's names
    assert not store.check(keys)
    store.multi_set(keys, [""] * len(keys))
    assert store.check(keys)
    store.wait(keys)
    with raises(dist.DistStoreError, "nobody"):
        store.wait([*keys, "nobody"], _short(50))
    large = "v" * (9 << 20)  # TCPStore takes 8 MiB
    store.set("large", large)
    assert len(store.get("large")) == len(large)
    with raises(InvalidArgument, "compare_set of key 'large'", "9437184 and 9437184 bytes"):
        store.compare_set("large", large, large)


@case(2, 4)
def all_ranks_see_the_same_keys() -> None:
    rank, size = rank_and_size()
    store = Store()
    prefixed = PrefixStore("a", PrefixStore("b", store))
    prefixed.set(f"rank{rank}", str(rank))
    assert [prefixed.get(f"rank{r}") for r in range(size)] == [str(r).encode() for r in range(size)]
    prefixed.wait([f"rank{r}" for r in range(size)])
    store.append("log", f"<{rank}>")
    prefixed.add("arrived", 1)
    while prefixed.add("arrived", 0) < size:
        pass
    assert sorted(store.get("log").decode()) == sorted("".join(f"<{r}>" for r in range(size)))
    assert prefixed.add("total", rank + 1) <= sum(range(1, size + 1))


@case(2)
def gloo_meets_through_it() -> None:
    rank, size = rank_and_size()
    dist.init_process_group("gloo", store=Store(), rank=rank, world_size=size)
    everyones = [None] * size
    dist.all_gather_object(everyones, rank)
    assert everyones == list(range(size))
    dist.destroy_process_group()


@case(2)
def it_ends_with_the_job() -> None:
    store = Store(_short(2000))
    store.set(f"rank{bagua.get_rank()}", "here")
    store.wait(["rank0", "rank1"])
    bagua.destroy_process_group()
    with raises(RuntimeError):
        store.set("late", "value")
