"""Pelton under Bagua's name; see pelton.compat."""

from pelton.compat.aliases import install
from pelton.torch_api.algorithms import _defaults

install("bagua")
_defaults.are_baguas = True

import bagua_core as bagua_core  # type: ignore[import-not-found]  # noqa: E402  (as Bagua's own package does)

from bagua.version import __version__ as __version__  # type: ignore[import-not-found]  # noqa: E402
