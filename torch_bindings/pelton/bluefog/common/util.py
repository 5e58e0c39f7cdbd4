"""What BlueFog's tests and tools share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Sets variables of the environment for a `with` block.

    Args:
      variables: their values; None: such a variable is not set inside.
    """
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)
