"""`python -m pelton.script.baguarun`: the same as `pelton baguarun`, which imports no torch and starts sooner."""

from __future__ import annotations

from pelton_run.baguarun import main, parse_args

__all__ = ["main", "parse_args"]

if __name__ == "__main__":
    main()
