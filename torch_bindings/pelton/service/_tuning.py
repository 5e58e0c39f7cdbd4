"""What the tuning service knows of one model: its tensors, what is in force, and how good it was."""

from __future__ import annotations

import collections
import csv
import dataclasses
import itertools
import math
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pelton.bagua_define import BaguaHyperparameter, TensorDeclaration, get_tensor_declaration_bytes
from pelton.errors import FailedPrecondition, InvalidArgument
from pelton.service.bayesian_optimizer import BayesianOptimizer, BoolParam, IntParam, Param

# A bucket's size is searched for among the powers of two from 1 KiB to 2 GiB.
LEAST_SIZE_2P, GREATEST_SIZE_2P = 10, 31
# What the service answers as the size where tensors are not to be split into buckets. Source: Bagua 0.9.
WITHOUT_BUCKETS = 10 * 1024**5


def split_bucket_by_bucket_size(
    tensor_list: Sequence[TensorDeclaration], bucket_size: int
) -> list[list[TensorDeclaration]]:
    """Puts tensors into buckets of one dtype each.

    Dtypes follow each other in the order of their names; within one the tensors keep their order. A bucket closes when
    it has `bucket_size` bytes or more, so that it may exceed it by less than its last tensor.

    Units: `bucket_size` in bytes.
    """
    buckets = []
    by_dtype = sorted(tensor_list, key=_dtype_name)
    for _, tensors in itertools.groupby(by_dtype, key=_dtype_name):
        bucket: list[TensorDeclaration] = []
        filled = 0
        for tensor in tensors:
            bucket.append(tensor)
            filled += get_tensor_declaration_bytes(tensor)
            if filled >= bucket_size:
                buckets.append(bucket)
                bucket, filled = [], 0
        if bucket:
            buckets.append(bucket)
    return buckets


def in_order(tensors: Sequence[TensorDeclaration], order: Mapping[str, int]) -> list[TensorDeclaration]:
    """The tensors as `order` has them; those that it does not name come last, as they were."""
    return sorted(tensors, key=lambda tensor: order.get(tensor["name"], math.inf))


@dataclasses.dataclass(frozen=True)
class Record:
    """How fast training was with some hyperparameters. Threads: any. Owns: nothing."""

    train_iter: int
    rank: int
    hyperparameters: BaguaHyperparameter
    speed: float


@dataclasses.dataclass
class _Round:
    """What ranks have said since they registered tensors last. Threads: the model's lock. Owns: its list.

    Attributes:
      asked_at: the iteration at which each rank has asked last.
      first: the first report of the newest iteration that was reported.
      untold: the newest sample, until the optimizer was told of it.
      differing: the newest report that has other hyperparameters than the first one of its iteration.
    """

    asked_at: list[int | None]
    first: Record | None = None
    untold: Record | None = None
    differing: Record | None = None


class ModelTuning:
    """The tuning of one model. Threads: whoever holds `lock`. Owns: the optimizer, the records, the log.

    Attributes:
      lock: to be held around everything but `names`.
      names: of the registered tensors; replaced as a whole.
      hyperparameters: those in force.
      registered_at: when ranks registered tensors last. Units: seconds.
      granted_at: when hyperparameters changed last, or were still warming up. Units: seconds.
      warmup_pass_count: how often the ranks asked without anything being sampled yet.
      sampling_count: how many scores the optimizer was told.
      log_path: the csv file, or None.
    """

    def __init__(self, world_size: int, max_samples: int, is_output_autotune_log: bool) -> None:
        self.lock = threading.Lock()
        self.names: frozenset[str] = frozenset()
        self.hyperparameters = BaguaHyperparameter()
        self.registered_at = self.granted_at = 0.0
        self.warmup_pass_count = self.sampling_count = 0
        self.log_path = _new_log() if is_output_autotune_log else None
        self._world_size = world_size
        self._max_samples = max_samples
        self._is_bucketed = True
        self._tensors: list[TensorDeclaration] = []
        self._optimizer: BayesianOptimizer | None = None
        self._best: Record | None = None
        self._round = _Round([None] * world_size)

    @property
    def is_completed(self) -> bool:
        """Whether all samples were taken."""
        return self.sampling_count > self._max_samples

    def register(self, tensors: list[TensorDeclaration], bucket_size: int, is_bucketed: bool, now: float) -> None:
        """Puts the tensors into buckets and begins to warm up.

        What was learned is forgotten if these are other tensors than before. If they are not, and tuning is completed,
        its result stays in force.

        Raises:
          InvalidArgument: two tensors have one name.
        """
        names = [tensor["name"] for tensor in tensors]
        twice = [name for name, count in collections.Counter(names).items() if count > 1]
        if twice:
            raise InvalidArgument(f"tensor_list: several tensors are named '{twice[0]}'; give each its own name")
        if (tensors, is_bucketed) != (self._tensors, self._is_bucketed):
            self._tensors, self._is_bucketed, self.names = tensors, is_bucketed, frozenset(names)
            self._optimizer, self._best, self.sampling_count = None, None, 0
        # Iterations may count from 1 again; and nothing changes before every rank has asked once more.
        self._round = _Round([None] * self._world_size)
        self.warmup_pass_count = 0
        self.registered_at = self.granted_at = now
        if not self.is_completed:
            size = bucket_size if is_bucketed else WITHOUT_BUCKETS
            self.hyperparameters = BaguaHyperparameter(split_bucket_by_bucket_size(tensors, size), size)

    def report(self, record: Record) -> None:
        """Takes a rank's report. The first one of an iteration is the sample.

        Raises:
          InvalidArgument: the hyperparameters are none of this model's.
        """
        self._check(record)
        ranks = self._round
        if ranks.first is None or record.train_iter > ranks.first.train_iter:
            ranks.first = ranks.untold = record
        elif record.train_iter == ranks.first.train_iter and record.hyperparameters != ranks.first.hyperparameters:
            ranks.differing = record
            ranks.untold = None  # a speed that belongs to two plans says nothing of either

    def may_ask(self, train_iter: int) -> bool:
        """Whether new hyperparameters may come into force when a rank asks at an iteration.

        They may if every rank has asked last at one iteration, which is an earlier one: every rank has got the same
        answer there, and none has got this iteration's yet.
        """
        common = self._round.asked_at[0]
        return common is not None and common < train_iter and all(asked == common for asked in self._round.asked_at)

    def asked(self, rank: int, train_iter: int) -> None:
        """Notes that a rank has the answer of an iteration."""
        self._round.asked_at[rank] = train_iter

    def differing(self) -> Record | None:
        """A report that shows that not all ranks used the same at the iteration at which all have asked, or later."""
        found, common = self._round.differing, self._round.asked_at[0]
        return found if found is not None and common is not None and found.train_iter >= common else None

    def has_sample(self) -> bool:
        """Whether there is a score that the optimizer was not told."""
        return self._round.untold is not None

    def sample(self, train_iter: int, order: Mapping[str, int], now: float) -> None:
        """Tells the optimizer the newest score, and puts its next proposal into force; after the last sample the
        hyperparameters with the highest score.

        Args:
          train_iter: goes to the log.
          order: the place of tensors by name in the new buckets.
          now: goes to `granted_at`. Units: seconds.

        Raises:
          FailedPrecondition: there is no new score.
        """
        record = self._round.untold
        if record is None:
            raise FailedPrecondition("no rank has reported metrics since the last sample; report before you ask")
        self._round.untold = None
        if self._best is None or record.speed > self._best.speed:
            self._best = record
        self.sampling_count += 1
        self.granted_at = now
        proposal = self._learn(record, train_iter)
        self.hyperparameters = self._best.hyperparameters if self.is_completed else self._planned(proposal, order)

    def _learn(self, record: Record, train_iter: int) -> dict[str, Any]:
        """Tells the optimizer and the log a score; returns the optimizer's next proposal."""
        if self._optimizer is None:
            self._optimizer = BayesianOptimizer(self._space())
        params = self._params_of(record.hyperparameters)
        self._optimizer.tell(params, record.speed)
        if self.log_path is not None:
            _write_row(self.log_path, {**params, "train_iter": train_iter, "score": record.speed})
        return {} if self.is_completed else self._optimizer.ask()

    def _planned(self, params: Mapping[str, Any], order: Mapping[str, int]) -> BaguaHyperparameter:
        buckets, size = self.hyperparameters.buckets, WITHOUT_BUCKETS
        if self._is_bucketed:
            size = 1 << params["bucket_size_2p"]
            buckets = split_bucket_by_bucket_size(in_order(self._tensors, order), size)
        return BaguaHyperparameter(buckets, size, params["is_hierarchical_reduce"])

    def _space(self) -> dict[str, Param]:
        space: dict[str, Param] = {"is_hierarchical_reduce": BoolParam(False)}
        if self._is_bucketed:
            space = {"bucket_size_2p": IntParam(13, (LEAST_SIZE_2P, GREATEST_SIZE_2P)), **space}
        return space

    def _params_of(self, hyperparameters: BaguaHyperparameter) -> dict[str, Any]:
        params: dict[str, Any] = {"is_hierarchical_reduce": hyperparameters.is_hierarchical_reduce}
        if self._is_bucketed:
            size_2p = int(math.log2(hyperparameters.bucket_size))
            params["bucket_size_2p"] = min(max(size_2p, LEAST_SIZE_2P), GREATEST_SIZE_2P)
        return params

    def _check(self, record: Record) -> None:
        where = f"rank {record.rank}'s report of iteration {record.train_iter}"
        if not math.isfinite(record.speed):
            raise InvalidArgument(f"{where}: speed={record.speed!r}: must be finite")
        if record.hyperparameters.bucket_size < 1:
            raise InvalidArgument(f"{where}: bucket_size={record.hyperparameters.bucket_size}: must be positive")
        reported = sorted((t for bucket in record.hyperparameters.buckets for t in bucket), key=lambda t: t["name"])
        if reported != sorted(self._tensors, key=lambda t: t["name"]):
            raise InvalidArgument(
                f"{where}: the buckets have {len(reported)} tensors, which are not the {len(self._tensors)} "
                "that are registered, each once; report the hyperparameters that the service gave"
            )


def _dtype_name(tensor: TensorDeclaration) -> str:
    return str(tensor["dtype"].value)


def _new_log() -> Path:
    with tempfile.NamedTemporaryFile(prefix="bagua_autotune_", suffix=".log", delete=False) as file:
        return Path(file.name)


def _write_row(path: Path, row: Mapping[str, Any]) -> None:
    is_new = path.stat().st_size == 0
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=sorted(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)
