"""Packages that only parts of Pelton need; they are imported when such a part is used."""

from __future__ import annotations

import importlib
from typing import Any


def optional_module(name: str, purpose: str, extra: str) -> Any:
    """A module that Pelton does not need by itself.

    Args:
      name: what to import.
      purpose: what needs it, as the subject of a sentence.
      extra: the extra of Pelton's that brings it.

    Raises:
      ImportError: it is not installed; the text says how to.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        text = f"{purpose} needs the package {name} ({error}): pip install 'pelton[{extra}]'"
        raise ImportError(text, name=name) from error
