"""Refuses, when it is imported, another torch than the one that the extension was built for.

The extension derives from classes of torch (`c10d::Backend` is one) whose tables of functions change with torch's minor
versions: a wrong one would be called by wrong functions, without a word.
"""

from __future__ import annotations

import torch

from pelton._version import __version__

try:
    from pelton._build import TORCH
except ImportError:  # a checkout whose extension was copied by hand, not installed
    TORCH = torch.__version__


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def check(built_for: str, installed: str) -> None:
    """Compares two versions of torch.

    Args:
      built_for: the version that the extension was built for.
      installed: the version that the process has.

    Raises:
      ImportError: their minor versions differ; names both, and what to install.
    """
    if _minor(built_for) != _minor(installed):
        raise ImportError(
            f"pelton {__version__} was built for torch {_minor(built_for)}, and this is torch {installed}: its calls "
            f"would reach other functions there. Install torch=={_minor(built_for)}.*, or build pelton for this torch "
            "with `pip install --force-reinstall .` in its checkout."
        )


check(TORCH, torch.__version__)
