"""`python -m pelton.run -np 4 script.py`: the same as `pelton run -np 4 script.py`.

Importing `pelton` imports torch, so that this form starts some two seconds later; `python -m pelton_run` does not.
"""

from __future__ import annotations

import sys

from pelton_run.command_line import main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    sys.exit(run())
