"""A data set whose items come from a store once they have been computed."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from pelton.torch_api.contrib.cache_loader import CacheLoader

__all__ = ["CachedDataset"]


class CachedDataset(Dataset[Any]):
    """Another data set's items, each computed once for all ranks and epochs, as long as the store keeps it.

    Threads: one at a time. Owns: the loader; the data set is the caller's.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        backend: str = "redis",
        dataset_name: str = "",
        writer_buffer_size: int = 20,
        **kwargs: Any,
    ) -> None:
        """As `CacheLoader`.

        Args:
          dataset: computes the items; its items must always be the same.
          backend: as for `CacheLoader`.
          dataset_name: as for `CacheLoader`.
          writer_buffer_size: as for `CacheLoader`.
          **kwargs: as for `CacheLoader`.

        Raises:
          PeltonError: as `CacheLoader`.
        """
        self.dataset = dataset
        self.cache_loader = CacheLoader(backend, dataset_name, writer_buffer_size, **kwargs)

    def __getitem__(self, item: Any) -> Any:
        return self.cache_loader.get(item, self.dataset.__getitem__)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]
