"""Environment variables that launchers and ranks read. Each of Bagua's has a second name, which begins with PELTON_ and
goes before the first.
"""

from __future__ import annotations

import os

_BAGUAS, _OURS = "BAGUA_", "PELTON_"


def is_backend_in_daemon() -> bool:
    """Whether each rank's backend is to work in a pelton-daemon (PELTON_BACKEND; in the rank if unset).

    Raises:
      ValueError: it is neither "process" nor "daemon".
    """
    named = os.environ.get("PELTON_BACKEND", "process")
    if named not in ("process", "daemon"):
        raise ValueError(f"PELTON_BACKEND={named!r} in the environment: must be 'process' or 'daemon'")
    return named == "daemon"


def second_name(name: str) -> str:
    """Pelton's name of a variable of Bagua's: PELTON_SSH_PORT of BAGUA_SSH_PORT."""
    return _OURS + name.removeprefix(_BAGUAS)


def name_in_force(name: str) -> str:
    """The name that counts: Pelton's where that is set, else Bagua's.

    Args:
      name: Bagua's.
    """
    ours = second_name(name)
    return ours if ours in os.environ else name


def value_of(name: str, default: str) -> str:
    """What is set under the name that counts, or the default."""
    return os.environ.get(name_in_force(name), default)
