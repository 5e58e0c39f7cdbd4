"""What Pelton's strategies for Lightning's two packages, `lightning` and `pytorch_lightning`, have in common."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from pelton._training import _launchers, _session, communication, env
from pelton._training.algorithms.base import Algorithm
from pelton._training.checkpoint import _entries, _one_file
from pelton._training.checkpoint._experts import LocalExperts
from pelton._training.checkpoint._ranks import paused
from pelton._training.checkpoint.checkpointing import _continue_algorithm
from pelton._training.data_parallel import DistributedDataParallel
from pelton._training.data_parallel._checked import checked_algorithm
from pelton.errors import Unsupported

if TYPE_CHECKING:
    from lightning.pytorch.strategies import DDPStrategy as _Base
else:
    _Base = object  # the packages' classes have nothing in common

_FITTING = "fit"  # TrainerFn.FITTING of either package, which equals its text
# Of a checkpoint.
_OPTIMIZERS, _SCHEDULERS = "optimizer_states", "lr_schedulers"
_PARTS = "pelton_ranks"  # what each rank has beside rank 0's state
_ALGORITHM = "pelton_algorithm"  # once it is read: what this rank's algorithm goes on from
_REMEDY = (
    "Start them by `pelton run` or torchrun, or by mpirun with mpi4py installed, and give Trainer their number as "
    "devices= and num_nodes="
)


class AlgorithmStrategy(_Base):
    """Trains a LightningModule with any algorithm of Pelton's; in all else it is the DDPStrategy of one of Lightning's
    two packages, which the classes that derive from this one and that name.

    Threads: the trainer's. Owns: the wrapping, from `setup` to `teardown`.
    """

    strategy_name = "bagua"
    trainers = ""  # whose trainers take it, and which class the other package's take

    def __init__(
        self,
        algorithm: str | Algorithm = "gradient_allreduce",
        flatten: bool = True,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        timeout: timedelta | None = None,
        start_method: str = "popen",
        consolidate: bool = True,
        algorithm_state: bool = True,
        **options: Any,
    ) -> None:
        """Lightning passes all but the first two and the last by itself.

        Args:
          algorithm: a name of `pelton.torch_api.algorithms.GlobalAlgorithmRegistry`, or an algorithm.
          flatten: gradients may lie in the buckets.
          accelerator: Lightning's.
          parallel_devices: one for each rank of this host.
          cluster_environment: says rank and world size.
          checkpoint_io: Lightning's.
          precision_plugin: Lightning's.
          timeout: of each operation; PELTON_TIMEOUT if None.
          start_method: how Lightning's own launcher starts the other ranks: "popen", "spawn", "fork", "forkserver".
          consolidate: where the algorithm lets ranks run apart, their weights become the mean of all when `fit` ends.
          algorithm_state: False: a run that is resumed takes rank 0's weights and optimizers on all ranks, and the
            algorithm begins anew. For another algorithm than the checkpoint was saved with.
          **options: of the algorithm, where that is a name.
        """
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            timeout=timeout,
            start_method=start_method,  # type: ignore[arg-type]
        )
        self._algorithm = algorithm
        self._flatten = flatten
        self._options = options
        self._consolidates = consolidate
        self._takes_state = algorithm_state
        self._environment: dict[str, str] = {}

    def __repr__(self) -> str:
        """Lightning's error about a strategy of its other package shows it."""
        return f"<{type(self).__module__}.{type(self).__qualname__}, {self.trainers}>"

    @property
    def wrapped(self) -> DistributedDataParallel | None:
        """The model while it is trained; `wrapped.inner` is the machinery (`consolidate`, `statistics`, ...)."""
        return self.model if isinstance(self.model, DistributedDataParallel) else None

    def _reset_seed(self) -> None:
        """Of the package: the seed is again what `seed_everything` has set."""
        raise NotImplementedError

    def _configure_launcher(self) -> None:
        """As its base, before which Lightning has not yet written its own world size over the launcher's."""
        if self.world_size == 1 and not communication.is_initialized():
            _launchers.refuse_to_be_alone("Trainer", "Lightning", env.get_world_size(), _REMEDY)
        super()._configure_launcher()

    def setup_distributed(self) -> None:
        """Joins the job, unless an earlier run of a Trainer in this process did; see `init_process_group`.

        And initialises torch.distributed where it is not: without it Lightning takes each rank's own metrics for those
        of all, and its barriers and broadcasts do nothing.
        """
        self._reset_seed()
        self.set_world_ranks()
        assert self.cluster_environment is not None
        self._environment = {
            "RANK": str(self.global_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.num_processes),
            "MASTER_ADDR": self.cluster_environment.main_address,
            "MASTER_PORT": str(self.cluster_environment.main_port),
        }
        os.environ.update(self._environment)
        if not communication.is_initialized():
            communication.init_process_group(timeout=None if self._timeout is None else self._timeout.total_seconds())
        _session.make_torch_group()

    def configure_ddp(self) -> None:
        """Nothing yet: the model is wrapped once there are optimizers."""

    def setup(self, trainer: Any) -> None:
        """As its base; then wraps the model with the optimizers, where it is to be trained. Collective."""
        super().setup(trainer)
        if trainer.state.fn != _FITTING:
            return
        module = self.lightning_module
        assert module is not None
        algorithm = checked_algorithm(self._algorithm, self.optimizers, self._options)
        # Lightning's own wrapper broadcasts buffers, too.
        self.model = DistributedDataParallel(
            module, optimizers=self.optimizers, algorithm=algorithm, gradient_as_bucket_view=self._flatten
        )

    @contextlib.contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """Backward passes within it only accumulate: `accumulate_grad_batches`."""
        with self.wrapped.no_sync() if self.wrapped is not None else contextlib.nullcontext():
            yield

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Writes rank 0's state as its base does; and, unless weights alone are to be saved, what of each other rank's
        differs from it, and what the algorithm remembers on every rank. Collective.
        """
        if self.wrapped is None or _OPTIMIZERS not in checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        inner = self.wrapped.inner
        with paused({"": inner}):
            checkpoint = {**checkpoint, _PARTS: _one_file.gather(self._entries_of(checkpoint), inner)}
            super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Reads a checkpoint as this rank would have written it: to go on from where another number of ranks was, see
        `pelton.torch_api.checkpoint.load_checkpoint`.

        Raises:
          Unsupported: it was saved by another number of ranks, and the module has experts.
        """
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        parts = checkpoint.pop(_PARTS, None)
        module = self.lightning_module
        assert module is not None
        if parts is None or not self._takes_state or module.trainer.state.fn != _FITTING:
            return checkpoint
        if len(parts) != self.world_size and LocalExperts(module, self.global_rank, self.world_size).count:
            raise Unsupported(
                f"{checkpoint_path}: {len(parts)} ranks have saved their experts, and these are {self.world_size}; "
                "pelton.torch_api.checkpoint moves experts between ranks, Lightning's checkpoints do not"
            )
        entries, algorithm = _one_file.entries_of(
            self._entries_of(checkpoint), parts, self.global_rank, self.world_size
        )
        return {**checkpoint, **self._contents(checkpoint, entries), _ALGORITHM: algorithm}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """As its base; then the algorithm goes on from what it remembered, on whatever number of ranks. Collective."""
        super().load_optimizer_state_dict(checkpoint)
        module = self.lightning_module
        if self.wrapped is None or module is None or _ALGORITHM not in checkpoint:
            return
        self.load_model_state_dict(checkpoint, module.strict_loading)  # wrapping has given all ranks rank 0's weights
        _continue_algorithm(self.wrapped.inner, checkpoint[_ALGORITHM])

    def on_train_end(self) -> None:
        """`fit` has come to its end on all ranks. Collective where the algorithm lets ranks run apart."""
        super().on_train_end()
        if self.wrapped is not None and self._consolidates:
            self.wrapped.inner.consolidate()

    def teardown(self) -> None:
        """Stops an averaging beside training when all ranks are here, and makes the module a plain one again."""
        wrapped = self.wrapped
        if wrapped is not None:
            self.model = self.lightning_module
            trainer = getattr(self.lightning_module, "_trainer", None)
            if trainer is not None and not trainer.interrupted:
                wrapped.inner.stop_averaging()
            wrapped.inner.detach("its Trainer has ended the strategy")
        super().teardown()
        os.environ.update(self._environment)  # Lightning takes WORLD_SIZE away, but the job goes on

    def _entries_of(self, checkpoint: Mapping[str, Any]) -> _entries.Entries:
        """What of Lightning's checkpoint may differ between ranks."""
        entries = _entries.model_entries(checkpoint["state_dict"])
        entries.update(_entries.optimizer_entries(checkpoint[_OPTIMIZERS]))
        entries.update(_entries.scheduler_entries(checkpoint[_SCHEDULERS]))
        precision = type(self.precision_plugin).__qualname__  # a gradient scaler's state
        if precision in checkpoint:
            entries[("precision",)] = checkpoint[precision]
        return entries

    def _contents(self, checkpoint: Mapping[str, Any], entries: _entries.Entries) -> dict[str, Any]:
        """The same in Lightning's form."""
        metadata = getattr(checkpoint["state_dict"], "_metadata", None)
        contents: dict[str, Any] = {
            "state_dict": _entries.model_state(entries, metadata),
            _OPTIMIZERS: _entries.optimizer_states(entries),
            _SCHEDULERS: _entries.scheduler_states(entries),
        }
        if ("precision",) in entries:
            contents[type(self.precision_plugin).__qualname__] = entries[("precision",)]
        return contents

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Under the names "bagua" and "pelton"."""
        for name in ("bagua", "pelton"):
            if name not in strategy_registry:
                strategy_registry.register(name, cls, description="Pelton's algorithms; `algorithm` names one")
