"""Runs a script as if the CPU were its GPU: `on_cpu.py script.py [arguments]`. What it asks of CUDA does nothing."""

from __future__ import annotations

import runpy
import sys
from typing import Any
from unittest import mock

import torch


def _itself(self: Any, *_: Any, **__: Any) -> Any:
    return self


def main() -> None:
    """The command line says what to run."""
    sys.argv = sys.argv[1:]
    torch.Tensor.cuda = torch.nn.Module.cuda = _itself  # type: ignore[method-assign]
    nothings = ("set_device", "manual_seed", "manual_seed_all", "synchronize")
    with mock.patch.multiple(torch.cuda, is_available=lambda: True, **{name: mock.Mock() for name in nothings}):
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
