"""`python -m pelton_run -np 4 script.py`: the launcher without importing torch."""

import sys

from pelton_run.command_line import run

sys.exit(run())
