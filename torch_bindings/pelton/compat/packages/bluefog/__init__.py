"""Pelton under BlueFog's name; see pelton.compat."""

from pelton import __version__ as __version__
from pelton.compat.aliases import install

install("bluefog")
