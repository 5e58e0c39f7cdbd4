"""The version of Bagua whose interface this is, with Pelton's own behind it."""

from pelton import __version__ as _pelton

__version__ = f"0.9.2+pelton.{_pelton}"
