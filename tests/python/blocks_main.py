"""A rank of test_code_blocks.py: `blocks_main.py FOLDER` runs the Python blocks of all pages, each with what its page
presumes, and notes those that ran in FOLDER.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pages
import pelton
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from pelton.torch_api.algorithms.bytegrad import ByteGradAlgorithm
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from torch import nn

Names = dict[str, Any]
# A job of so many ranks runs the blocks of this page; the others run on two.
RANKS = {"docs/communication.md": 4}


def blocks() -> list[tuple[str, str]]:
    """Each Python block, with its name."""
    return [(block.name, block.text) for block in pages.blocks() if block.language == "python"]


def batches(*_: object) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _step in range(3):
        yield torch.randn(8, 64), torch.arange(8)


def _bare() -> Names:
    return {}


def _joined() -> Names:
    bagua.init_process_group()
    model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = torch.utils.data.TensorDataset(torch.randn(256, 4), torch.randn(256, 4))
    return {
        "GradientAllReduceAlgorithm": GradientAllReduceAlgorithm,
        "algorithm": ByteGradAlgorithm(),
        "bagua": bagua,
        "dataset": dataset,
        "dist": dist,
        "epochs": 2,
        "model": model,
        "optimizer": optimizer,
        "pelton": pelton,
        "rank": bagua.get_rank(),
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "step": 7,
        "tensor": torch.ones(3),
        "torch": torch,
        "world_size": bagua.get_world_size(),
    }


def _wrapped() -> Names:
    names = _joined()
    names["model"].with_bagua([names["optimizer"]], names["algorithm"])
    names["path"] = "saved.pt"
    return names


def _without_torchs_group() -> Names:
    names = _joined()
    dist.destroy_process_group()
    return names


def _with_vectors() -> Names:
    names = _joined()
    return {**names, "word": "word", "compute_vector": lambda word: torch.ones(3)}


def _with_position() -> Names:
    return {**_joined(), "steps": 2, "position": 7}


def _with_batches() -> Names:
    return {"my_batches": batches}


def _with_module() -> Names:
    return {"module": nn.Linear(3, 2)}


def _with_lightnings_module() -> Names:
    import lightning  # which takes seconds to import
    import pelton.lightning
    from lightning_main import Net, data

    class Module(Net):
        def train_dataloader(self) -> Any:
            return data()

    return {"lightning": lightning, "module": Module(), "pelton": pelton}


def _trains(names: Names) -> None:
    pairs = [(torch.randn(8, 64), torch.randn(8, 10)) for _ in range(3)]
    bagua.init_process_group()
    names["train"](nn.Sequential(nn.Linear(64, 10)), pairs)


# What a block presumes.
CONTEXTS: dict[str, Callable[[], Names]] = {
    "README.md python 1": _bare,
    "docs/coming_from/bluefog.md python 1": _bare,
    "docs/autotune.md python 1": lambda: {**_joined(), **_with_batches()},
    "docs/autotune.md python 2": _joined,
    "docs/autotune.md python 3": _bare,
    "docs/communication.md python 1": _joined,
    "docs/contrib.md python 1": _joined,
    "docs/contrib.md python 2": _joined,
    "docs/contrib.md python 3": _with_vectors,
    "docs/daemon.md python 1": _with_position,
    "docs/moe.md python 1": _bare,
    "docs/moe.md python 2": _joined,
    "docs/python.md python 1": _with_batches,
    "docs/pytorch.md python 1": _with_module,
    "docs/pytorch.md python 2": _with_lightnings_module,
    "docs/pytorch.md python 3": _without_torchs_group,
    "docs/start_here.md python 1": _joined,
    "docs/start_here.md python 2": _joined,
    "docs/start_here.md python 3": _wrapped,
    "docs/writing_an_algorithm_in_python.md python 1": _bare,
}
# What a block that only defines is then used for.
USES: dict[str, Callable[[Names], None]] = {"docs/writing_an_algorithm_in_python.md python 1": _trains}


def main() -> None:
    """Every block of the pages that have as many ranks as this job."""
    os.chdir(sys.argv[1])  # where blocks write, too
    done = Path(f"rank{bagua.get_rank()}.txt").absolute()
    for name, block in blocks():
        if RANKS.get(name.split()[0], 2) != bagua.get_world_size():
            continue
        names = CONTEXTS[name]()
        exec(compile(block.replace("10.0.0.7", "127.0.0.1"), name, "exec"), names)
        if name in USES:
            USES[name](names)
        if bagua.is_initialized():
            bagua.destroy_process_group()
        if dist.is_initialized():
            dist.destroy_process_group()
        with open(done, "a") as file:  # a progress bar of a block's may be on the screen
            file.write(f"{name}\n")


if __name__ == "__main__":
    main()
