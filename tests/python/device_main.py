"""Runs the cases of a module in this process, with the device loaded: `device_main.py MODULE`. Prints a JSON object:
what went wrong, by case; "" for nothing."""

from __future__ import annotations

import json
import sys
import traceback

import accelerator
from cases.registry import Case, cases_of


def _error_of(case: Case) -> str:
    try:
        case.function()
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    accelerator.load()
    print(json.dumps({case.name: _error_of(case) for case in cases_of(sys.argv[1])}))
