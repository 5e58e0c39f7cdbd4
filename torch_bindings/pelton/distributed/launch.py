"""`python -m pelton.distributed.launch`: Bagua's static launcher, for one host or several.

Importing `pelton` imports torch, so that this form starts some two seconds later; `python -m pelton_run.launch` does
not.
"""

from __future__ import annotations

from pelton_run.launch import main, parse_args

__all__ = ["main", "parse_args"]

if __name__ == "__main__":
    main()
