"""Lightning 2 trains with Pelton's algorithms: `import pelton.lightning` registers the strategies "bagua" and "pelton".

    import lightning, pelton.lightning

    lightning.Trainer(strategy="bagua", accelerator="cpu", devices=2).fit(module)
    lightning.Trainer(strategy=pelton.lightning.BaguaStrategy("local_sgd", interval=8), ...)

The module's optimizers are those of `configure_optimizers`; an algorithm that asks for an optimizer of its own (QAdam,
1-bit Adam) finds it there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from datetime import timedelta
from typing import Any

import torch

from pelton._extras import optional_module

_PURPOSE = "pelton.lightning"
optional_module("lightning", _PURPOSE, "lightning")

from lightning.fabric.utilities.seed import reset_seed  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry  # noqa: E402
from lightning.pytorch.trainer.states import TrainerFn  # noqa: E402

from pelton import torch_api  # noqa: E402
from pelton.torch_api.algorithms.base import Algorithm  # noqa: E402
from pelton.torch_api.data_parallel import DistributedDataParallel  # noqa: E402
from pelton.torch_api.data_parallel._checked import checked_algorithm  # noqa: E402

_STATES = "pelton_algorithm_states"  # of a checkpoint: one of each rank


class BaguaStrategy(DDPStrategy):
    """Trains a LightningModule with any algorithm of Pelton's; in all else it is Lightning's DDPStrategy.

    Threads: the trainer's. Owns: the wrapping, from `setup` to `teardown`.
    """

    strategy_name = "bagua"

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
        self._environment: dict[str, str] = {}

    @property
    def wrapped(self) -> DistributedDataParallel | None:
        """The model while it is trained; `wrapped.inner` is the machinery (`consolidate`, `statistics`, ...)."""
        return self.model if isinstance(self.model, DistributedDataParallel) else None

    def setup_distributed(self) -> None:
        """Joins the job, unless an earlier run of a Trainer in this process did; see `init_process_group`."""
        reset_seed()
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
        if not torch_api.is_initialized():
            torch_api.init_process_group(timeout=None if self._timeout is None else self._timeout.total_seconds())

    def configure_ddp(self) -> None:
        """Nothing yet: the model is wrapped once there are optimizers."""

    def setup(self, trainer: Any) -> None:
        """As its base; then wraps the model with the optimizers, where it is to be trained. Collective."""
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
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
        """Writes rank 0's weights and optimizers' states, and what the algorithm remembers on each rank, as long as all
        hold the same weights: else ranks begin anew from rank 0's. Collective.
        """
        states = self._gathered_states()
        if states:
            checkpoint = {**checkpoint, _STATES: states}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """As its base; then the algorithm goes on from what it remembered, on whatever number of ranks. Collective."""
        super().load_optimizer_state_dict(checkpoint)
        states = checkpoint.get(_STATES)
        if states is None or self.wrapped is None:
            return
        self.wrapped.inner.load_algorithm_state_dict(states)

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

    def _gathered_states(self) -> list[dict[str, Any]]:
        """What the algorithm remembers on every rank; nothing where it keeps nothing that can go on."""
        wrapped = self.wrapped
        if wrapped is None or not wrapped.inner.weights_are_equal:
            return []
        state = wrapped.inner.algorithm_state_dict()
        return [torch_api.broadcast_object(state, src=rank) for rank in range(self.world_size)]

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Under the names "bagua" and "pelton"."""
        for name in ("bagua", "pelton"):
            if name not in strategy_registry:
                strategy_registry.register(name, cls, description="Pelton's algorithms; `algorithm` names one")


BaguaStrategy.register_strategies(StrategyRegistry)
