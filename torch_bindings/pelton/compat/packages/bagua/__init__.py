"""Pelton under Bagua's name; see pelton.compat."""

from pelton._training.algorithms import _defaults
from pelton.compat.aliases import install

install("bagua")
_defaults.are_baguas = True

import bagua_core as bagua_core  # type: ignore[import-not-found]  # noqa: E402  (as Bagua's own package does)

from bagua.version import __version__ as __version__  # type: ignore[import-not-found]  # noqa: E402
