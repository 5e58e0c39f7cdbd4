"""A rank of a test: `rank_main.py RESULTS_FOLDER MODULE...`. Runs the modules' cases and writes down how each went."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
from pathlib import Path

import pelton.torch_api as bagua
from cases.registry import Case, NotRun, cases_of

LIMIT_OF_A_CASE_S = 240  # the longest takes 30 on a machine that does nothing else


def _run(case: Case) -> dict[str, str | float]:
    """Each case has a process group of its own, so that one that fails does not spoil the next."""
    start, error, not_run = time.monotonic(), "", ""
    faulthandler.dump_traceback_later(LIMIT_OF_A_CASE_S, exit=True)  # the others would wait in every later case
    try:
        bagua.init_process_group(torch_distributed=False)  # cases initialise it on a backend of their choice
        case.function()
    except NotRun as reason:
        not_run = str(reason)
    except BaseException:
        error = traceback.format_exc()
    try:
        bagua.destroy_process_group()
    except Exception:
        error += traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    return {"name": case.id, "error": error, "not_run": not_run, "seconds": round(time.monotonic() - start, 3)}


def main() -> None:
    """Results are written one by one: what was done before a crash is known."""
    folder, *modules = sys.argv[1:]
    ranks_per_host = int(os.environ.get("PELTON_TEST_RANKS_PER_HOST", "0"))
    if ranks_per_host > 0:
        os.environ["PELTON_HOST_LABEL"] = f"host-{bagua.get_rank() // ranks_per_host}"
    with open(Path(folder) / f"rank{bagua.get_rank()}.jsonl", "w") as results:
        for case in (case for module in modules for case in cases_of(module)):
            if bagua.get_world_size() in case.world_sizes:
                results.write(json.dumps(_run(case)) + "\n")
                results.flush()


if __name__ == "__main__":
    main()
