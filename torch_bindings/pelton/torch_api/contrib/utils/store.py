"""Stores of keys and values, and one that spreads its keys over several."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Union

from pelton._extras import optional_module
from pelton.errors import InvalidArgument, Unsupported

__all__ = ["ClusterStore", "Store"]

Value = Union[str, bytes]


class Store:
    """A store of keys and values; the methods of this class raise Unsupported. Threads, Owns: the subclass says."""

    def set(self, key: str, value: Value) -> None:
        """Stores a value under a key."""
        raise self._lacks("set")

    def get(self, key: str) -> Value | None:
        """The value of a key; None where there is none."""
        raise self._lacks("get")

    def num_keys(self) -> int:
        """The number of keys."""
        raise self._lacks("num_keys")

    def clear(self) -> None:
        """Deletes all keys."""
        raise self._lacks("clear")

    def mset(self, dictionary: dict[str, Value]) -> None:
        """Stores several values at once."""
        raise self._lacks("mset")

    def mget(self, keys: list[str]) -> list[Value | None]:
        """The values of several keys, in their order."""
        raise self._lacks("mget")

    def status(self) -> bool:
        """Whether the store answers."""
        raise self._lacks("status")

    def shutdown(self) -> None:
        """Ends what was started for the store; what was there before goes on."""
        raise self._lacks("shutdown")

    def _lacks(self, method: str) -> Unsupported:
        return Unsupported(f"{type(self).__name__}.{method}: not offered; a subclass of Store defines it")


class ClusterStore(Store):
    """Spreads keys over several stores by their hashes, the same on all ranks. Threads, Owns: as the stores."""

    def __init__(self, stores: Sequence[Store]) -> None:
        """Args:
        stores: in the same order wherever the keys are looked for.

        Raises:
          InvalidArgument: there is no store.
          ImportError: there are several, and the package xxhash is missing.
        """
        if not stores:
            raise InvalidArgument("stores: is empty; give one store at least")
        self.stores = list(stores)
        if len(self.stores) > 1:
            optional_module("xxhash", "a ClusterStore of several stores", "cache")

    def route(self, key: str) -> Store:
        """The store of a key."""
        if len(self.stores) == 1:
            return self.stores[0]
        hashed = optional_module("xxhash", "a ClusterStore of several stores", "cache").xxh64(key.encode()).intdigest()
        return self.stores[int(hashed) % len(self.stores)]

    def set(self, key: str, value: Value) -> None:
        """Stores a value in the key's store."""
        self.route(key).set(key, value)

    def get(self, key: str) -> Value | None:
        """The value in the key's store; None where there is none."""
        return self.route(key).get(key)

    def num_keys(self) -> int:
        """The number of keys of all stores."""
        return sum(store.num_keys() for store in self.stores)

    def clear(self) -> None:
        """Deletes all keys of all stores."""
        for store in self.stores:
            store.clear()

    def mset(self, dictionary: dict[str, Value]) -> None:
        """Stores several values, all that belong to one store at once. One that fails does not keep the others from
        theirs; what the first one failed with is raised then.
        """
        parts: dict[int, dict[str, Value]] = {}
        for key, value in dictionary.items():
            parts.setdefault(self.stores.index(self.route(key)), {})[key] = value
        _for_each([functools.partial(self.stores[i].mset, part) for i, part in parts.items()])

    def mget(self, keys: list[str]) -> list[Value | None]:
        """The values of several keys, in their order."""
        places: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(self.stores.index(self.route(key)), []).append(place)
        found: list[Value | None] = [None] * len(keys)
        for i, own in places.items():
            for place, value in zip(own, self.stores[i].mget([keys[place] for place in own])):
                found[place] = value
        return found

    def status(self) -> bool:
        """Whether every store answers."""
        return all(store.status() for store in self.stores)

    def shutdown(self) -> None:
        """Ends every store that was started for this one."""
        _for_each([store.shutdown for store in self.stores])


def _for_each(calls: Sequence[Callable[[], None]]) -> None:
    """Makes all calls, and raises what the first one failed with."""
    first: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
