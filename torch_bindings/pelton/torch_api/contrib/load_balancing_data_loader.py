"""Samplers that give the ranks items of like complexity in each step, so that no rank waits long for another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from pelton._training._groups import AnyGroup
from pelton.errors import InvalidArgument
from pelton.torch_api.contrib._ranks import rank_and_size

__all__ = ["LoadBalancingDistributedBatchSampler", "LoadBalancingDistributedSampler"]


class LoadBalancingDistributedSampler(Sampler[int]):
    """Gives each rank its share of a data set, such that what the ranks get in one step is of like complexity.

    Items are sorted by complexity and cut into chunks of as many neighbours as there are ranks; rank r takes element r
    of each chunk. The order is Bagua's, bit for bit, for the same seed, epoch and random_level.

    Threads: one. Owns: the complexities; the data set is the caller's.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        complexity_fn: Callable[[Any], Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0,
        process_group: AnyGroup = None,
    ) -> None:
        """Reads every item once, to learn its complexity. Not collective.

        Args:
          dataset: has a length, and as many items as it says.
          complexity_fn: a number of an item, or a tensor of one element; the same on all ranks.
          num_replicas: into how many shares the items are divided; the number of ranks if None.
          rank: whose share this is; this rank if None.
          shuffle: the chunks come in an order that seed and epoch decide, else with complexity ascending.
          seed: the same on all ranks.
          drop_last: leaves out the most complex items where their number is no multiple of num_replicas; else the
            simplest ones come a second time.
          random_level: 0 to 1; how much of the range of complexities is added to them, at random, before each sorting.
          process_group: whose ranks share the items, where num_replicas or rank is None; None for all ranks.

        Raises:
          InvalidArgument: there is no item, or an argument is out of its range.
        """
        if num_replicas is None or rank is None:
            own_rank, size = rank_and_size(process_group)
            num_replicas = size if num_replicas is None else num_replicas
            rank = own_rank if rank is None else rank
        _check(num_replicas, rank, random_level)
        self.dataset = dataset
        self.num_replicas, self.rank = num_replicas, rank
        self.epoch, self.seed = 0, seed
        self.shuffle, self.drop_last = shuffle, drop_last
        count = len(dataset)  # type: ignore[arg-type]
        if count == 0:
            raise InvalidArgument("dataset: has no items, so there is nothing to share among the ranks")
        self.num_samples = count // num_replicas if drop_last else math.ceil(count / num_replicas)
        self.total_size = self.num_samples * num_replicas
        self._complexities = [_number(complexity_fn(dataset[item]), item) for item in range(count)]
        span = max(self._complexities) - min(self._complexities)
        self.random_number = int(span * random_level + 1)

    def shuffle_chunks(self) -> tuple[list[list[int]], list[int]]:
        """The chunks of this epoch, and the order in which they come.

        Returns:
          chunks, with one item for each rank, by complexity; numbers of chunks, in the order of the steps.

        Shape: [max(1, num_samples), num_replicas] and [num_samples].
        """
        if not self.shuffle:
            chunks = self._chunks(self._complexities)
            return chunks, list(range(len(chunks)))[: self.num_samples]
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        # Bagua draws them before the permutation at level 0 too, where all are 0: its order depends on it.
        shape = (len(self._complexities),)
        added = torch.randint(self.random_number, shape, generator=generator).tolist()
        chunks = self._chunks([own + more for own, more in zip(self._complexities, added)])
        order = torch.randperm(len(chunks), generator=generator).tolist()
        return chunks, order[: self.num_samples]

    def _chunks(self, complexities: Sequence[float]) -> list[list[int]]:
        """Neighbours in the sorted order; where that ends within a chunk, it begins anew."""
        by_complexity = sorted(range(len(complexities)), key=complexities.__getitem__)  # stable, as Bagua's
        items = itertools.cycle(by_complexity)
        return [list(itertools.islice(items, self.num_replicas)) for _ in range(max(1, self.num_samples))]

    def __iter__(self) -> Iterator[int]:
        chunks, order = self.shuffle_chunks()
        return iter([chunks[number][self.rank] for number in order])

    def __len__(self) -> int:
        """Number of items of each rank in an epoch."""
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Has the next iteration come in the order of that epoch; to be called on all ranks alike."""
        self.epoch = epoch


class LoadBalancingDistributedBatchSampler(Sampler[list[int]]):
    """Batches of a load balancing sampler's items that a function of the caller's cuts; equally many on each rank.

    Threads: one. Owns: the batches of the epoch; the sampler is the caller's.
    """

    def __init__(
        self,
        sampler: LoadBalancingDistributedSampler,
        batch_fn: Callable[[list[int]], list[list[int]]],
        drop_last: bool = False,
    ) -> None:
        """Cuts the batches of the sampler's epoch, of all ranks: each rank must know how many the others have.

        Args:
          sampler: says which items a rank gets, with `drop_last=False`.
          batch_fn: the batches of a list of items; the same on all ranks, and no batch may depend on anything else.
          drop_last: leaves out what a rank has beyond the smallest number of batches; else the first batches of a rank
            come again, until it has as many as the rank with most.

        Raises:
          InvalidArgument: the sampler is another one, or leaves items out itself; or batch_fn gives a rank no batch
            while others have some to keep up with.
        """
        if not isinstance(sampler, LoadBalancingDistributedSampler):
            raise InvalidArgument(f"sampler: must be a LoadBalancingDistributedSampler, is a {type(sampler).__name__}")
        if sampler.drop_last:
            raise InvalidArgument("sampler: has drop_last=True; give drop_last to the batch sampler alone")
        self.sampler, self.batch_fn, self.drop_last = sampler, batch_fn, drop_last
        self.num_replicas, self.rank = sampler.num_replicas, sampler.rank
        self.generate_batches()

    def generate_batches(self) -> None:
        """Cuts the batches of the sampler's present epoch.

        Raises:
          InvalidArgument: batch_fn gives a rank no batch while others have some.
        """
        chunks, order = self.sampler.shuffle_chunks()
        shares = ([chunks[number][rank] for number in order] for rank in range(self.num_replicas))
        batches = [list(self.batch_fn(share)) for share in shares]
        self.total_batch = (min if self.drop_last else max)(map(len, batches))
        for rank, own in enumerate(batches):
            if not own and self.total_batch > 0:
                raise InvalidArgument(
                    f"batch_fn: gives rank {rank} no batch of its {len(order)} items, while another rank has "
                    f"{self.total_batch}; have it return one at least, or set drop_last=True"
                )
        self.padded_batches = [list(itertools.islice(itertools.cycle(own), self.total_batch)) for own in batches]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.padded_batches[self.rank])

    def __len__(self) -> int:
        """Number of batches of each rank in this epoch."""
        return self.total_batch

    def set_epoch(self, epoch: int) -> None:
        """Has the next iteration come in the order of that epoch; to be called on all ranks alike."""
        self.sampler.set_epoch(epoch)
        self.generate_batches()


def _check(num_replicas: int, rank: int, random_level: float) -> None:
    if num_replicas < 1:
        raise InvalidArgument(f"num_replicas={num_replicas}: must be 1 or more")
    if not 0 <= rank < num_replicas:
        raise InvalidArgument(f"rank={rank}: must be 0 to {num_replicas - 1}, num_replicas - 1")
    if not 0.0 <= random_level <= 1.0:
        raise InvalidArgument(f"random_level={random_level}: must be 0 to 1")


def _number(complexity: Any, item: int) -> float:
    """A complexity as a plain number: a tensor would be one of the data set's own, which nothing may be added to."""
    value: float = complexity.item() if hasattr(complexity, "item") else complexity
    if not math.isfinite(value):
        raise InvalidArgument(f"complexity_fn: gives {value} for item {item}; it must be finite")
    return value
