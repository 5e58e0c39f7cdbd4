"""Values that are computed once and then come from a store, whatever becomes of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pelton._warn import warn
from pelton.errors import InvalidArgument
from pelton.torch_api.contrib import _values
from pelton.torch_api.contrib.utils.store import Store, Value

__all__ = ["CacheLoader"]

_READS_PER_FLUSH = 1000
_MISSING: Any = object()  # None may be a value


class CacheLoader:
    """Keeps what an expensive function returns in a store that all ranks share, by key.

    A store that fails costs no value: the function computes it then, and one warning says so. It works in the workers
    of a DataLoader, forked and spawned.

    Threads: one at a time. Owns: the store, and values that wait to be written.
    """

    def __init__(
        self,
        backend: str = "redis",
        dataset_name: str = "",
        writer_buffer_size: int = 1,
        *,
        allow_pickle: bool = False,
        **kwargs: Any,
    ) -> None:
        """Collective where the store is: `RedisStore` without `hosts` starts servers.

        Args:
          backend: the kind of the store; "redis" is known.
          dataset_name: begins the keys, which are f"{dataset_name}_{key}"; loaders of one name share values.
          writer_buffer_size: how many values are written at once.
          allow_pickle: values that have no other form may be pickled on servers that this job has not started, and
            such values of theirs are read: whoever can write to them can have anything run here.
          **kwargs: the store's, as `RedisStore` takes them.

        Raises:
          InvalidArgument: another backend, or an argument is wrong.
          PeltonError: as `RedisStore`.
        """
        if backend != "redis":
            raise InvalidArgument(f"backend={backend!r}: must be 'redis'")
        from pelton.torch_api.contrib.utils.redis_store import RedisStore

        self.backend, self.dataset_name = backend, dataset_name
        self.store: Store = RedisStore(**kwargs)
        self._allows_pickle = allow_pickle or self.store.is_own
        self._writer_buffer_size = max(1, writer_buffer_size)
        self._waiting: dict[str, Value] = {}
        self._reads = self._writes = 0
        self._has_warned = False

    def get(self, key: Any, load_fn: Callable[[Any], Any]) -> Any:
        """The value of a key.

        Args:
          key: what the value belongs to; its text is part of the store's key.
          load_fn: computes the value of a key that the store does not have.

        Raises:
          InvalidArgument: the value would have to be pickled, and must not be; the text names the type.
          Exception: what `load_fn` raises.
        """
        name = f"{self.dataset_name}_{key}"
        found = self._read(name)
        if found is not _MISSING:
            return found
        value = load_fn(key)
        self._write(name, _values.dumps(value, self._allows_pickle))
        return value

    def num_keys(self) -> int:
        """The number of keys in the store, those of other loaders among them.

        Raises:
          PeerLost: a server does not answer.
        """
        return self.store.num_keys()

    def _read(self, name: str) -> Any:
        self._reads += 1
        try:
            data = self.store.get(name)
            value = _MISSING if data is None else _values.loads(_as_bytes(data), self._allows_pickle)
        except Exception as error:  # whatever it is, the value can be computed
            self._warn(error)
            return _MISSING
        if self._reads % _READS_PER_FLUSH == 0:
            self._flush()
        return value

    def _write(self, name: str, data: bytes) -> None:
        self._writes += 1
        self._waiting[name] = data
        if self._writes % self._writer_buffer_size == 0:
            self._flush()

    def _flush(self) -> None:
        """Writes what waits. What cannot be written is forgotten: kept, it would grow without bound."""
        waiting, self._waiting = self._waiting, {}
        try:
            if waiting:
                self.store.mset(waiting)
        except Exception as error:  # the values have been delivered
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(
                f"the cache '{self.dataset_name}' failed, and values are computed instead of read, now and whenever it "
                f"fails again: {error}",
                RuntimeWarning,
            )


def _as_bytes(data: Value) -> bytes:
    return data.encode() if isinstance(data, str) else data
