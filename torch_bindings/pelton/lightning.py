"""Lightning 2 trains with Pelton's algorithms: `import pelton.lightning` registers the strategies "bagua" and "pelton".

    import lightning, pelton.lightning

    lightning.Trainer(strategy="bagua", accelerator="cpu", devices=2).fit(module)
    lightning.Trainer(strategy=pelton.lightning.BaguaStrategy("local_sgd", interval=8), ...)

The names are registered for the package `pytorch_lightning`, too, where that is installed; the class for its trainers
is `pelton.pytorch_lightning.BaguaStrategy`, because the two packages share no classes.

The module's optimizers are those of `configure_optimizers`; an algorithm that asks for an optimizer of its own (QAdam,
1-bit Adam) finds it there.
"""

from __future__ import annotations

import importlib
import importlib.util

from pelton._extras import optional_module

_PURPOSE = "pelton.lightning"
optional_module("lightning", _PURPOSE, "lightning")

from lightning.fabric.utilities.seed import reset_seed  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry  # noqa: E402

from pelton._lightning import AlgorithmStrategy  # noqa: E402


class BaguaStrategy(AlgorithmStrategy, DDPStrategy):
    """Trains a LightningModule of `lightning` with any algorithm; in all else it is `lightning`'s DDPStrategy.

    Threads, Owns: as `AlgorithmStrategy`.
    """

    trainers = "for lightning.Trainer; pytorch_lightning.Trainer takes pelton.pytorch_lightning.BaguaStrategy"

    def _reset_seed(self) -> None:
        reset_seed()


BaguaStrategy.register_strategies(StrategyRegistry)
if importlib.util.find_spec("pytorch_lightning") is not None:
    importlib.import_module("pelton.pytorch_lightning")  # registers the names there
