"""A rank of a test: `rank_main.py MODULE RESULTS_FOLDER`. Runs the module's cases and writes down how each went."""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path

import pelton.torch_api as bagua
from cases.registry import cases_of


def main() -> None:
    """Each case has a process group of its own, so that one that fails does not spoil the next."""
    module, folder = sys.argv[1:3]
    with open(Path(folder) / f"rank{bagua.get_rank()}.jsonl", "w") as results:
        for case in cases_of(module):
            if bagua.get_world_size() not in case.world_sizes:
                continue
            start, error = time.monotonic(), ""
            try:
                bagua.init_process_group()
                case.function()
            except BaseException:
                error = traceback.format_exc()
            try:
                bagua.destroy_process_group()
            except Exception:
                error += traceback.format_exc()
            seconds = round(time.monotonic() - start, 3)
            results.write(json.dumps({"name": case.name, "error": error, "seconds": seconds}) + "\n")
            results.flush()


if __name__ == "__main__":
    main()
