"""Whose defaults optimizers and algorithms have: Pelton's are safe ones, Bagua's are those of its scripts."""

from __future__ import annotations

# Set when a script imports `bagua` (pelton.compat): there a name means what it means in Bagua, formula and default.
are_baguas = False
