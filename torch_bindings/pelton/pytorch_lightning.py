"""`pelton.lightning` for scripts that import Lightning 2 under its other name: the package `pytorch_lightning`.

    import pytorch_lightning as pl, pelton.pytorch_lightning

    pl.Trainer(strategy=pelton.pytorch_lightning.BaguaStrategy("local_sgd", interval=8), ...)

Importing it registers the strategies "bagua" and "pelton" there.
"""

from __future__ import annotations

from pelton._extras import optional_module

_PURPOSE = "pelton.pytorch_lightning"
optional_module("pytorch_lightning", _PURPOSE, "lightning")

from lightning_fabric.utilities.seed import reset_seed  # noqa: E402
from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry  # noqa: E402

from pelton._lightning import AlgorithmStrategy  # noqa: E402


class BaguaStrategy(AlgorithmStrategy, DDPStrategy):  # type: ignore[misc]
    """Trains a LightningModule of `pytorch_lightning` with any algorithm; in all else it is that package's DDPStrategy.

    Threads, Owns: as `AlgorithmStrategy`.
    """

    trainers = "for pytorch_lightning.Trainer; lightning.Trainer takes pelton.lightning.BaguaStrategy"

    def _reset_seed(self) -> None:
        reset_seed()


BaguaStrategy.register_strategies(StrategyRegistry)
