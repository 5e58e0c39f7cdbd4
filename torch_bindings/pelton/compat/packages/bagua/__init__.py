"""Pelton under Bagua's name; see pelton.compat."""

from pelton import __version__ as __version__
from pelton.compat.aliases import install
from pelton.torch_api.algorithms import _defaults

install("bagua")
_defaults.are_baguas = True
