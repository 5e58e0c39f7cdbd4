"""Runs PyTorch's own tests of torch.distributed, which are in its wheel: `torch_distributed_main.py RESULTS [NAME...]`.

They are written for gloo, and with PELTON_REPLACE_GLOO=1 they run on Pelton. Every test has three forked ranks on the
CPU. RESULTS gets a line of JSON for each: its name, "passed", "skipped" or "failed", why, and its seconds. Without
names all tests are run.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

WORLD_SIZE = 3


def _prepare(folder: str) -> None:
    """Has to come before the import: the tests read the environment while they are imported."""
    (Path(folder) / "barrier").mkdir()
    (Path(folder) / "test_dir").mkdir()
    (Path(folder) / "init_dir").mkdir()
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(WORLD_SIZE),
        TEMP_DIR=folder,
        INIT_METHOD=f"file://{folder}/init_dir/shared_init_file",
        MASTER_ADDR="127.0.0.1",
    )


def _test_class() -> type[unittest.TestCase]:
    import torch
    from torch.testing._internal.distributed import distributed_test

    class OnThreeRanks(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()  # type: ignore[no-untyped-call]
            # Forked, because importing torch costs every rank seconds.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return OnThreeRanks


def _run(test: unittest.TestCase) -> dict[str, Any]:
    result, start = unittest.TestResult(), time.monotonic()
    test.run(result)
    problems = [text for _, text in [*result.errors, *result.failures]]
    outcome = "failed" if problems else "skipped" if result.skipped else "passed"
    why = "\n".join(problems or [reason for _, reason in result.skipped])
    seconds = round(time.monotonic() - start, 2)
    return {"name": test._testMethodName, "outcome": outcome, "why": why, "seconds": seconds}


def main() -> None:
    """The tests' own output goes to stderr."""
    path, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, open(path, "w") as results:
        _prepare(folder)
        cases = _test_class()
        for name in names or unittest.TestLoader().getTestCaseNames(cases):
            results.write(json.dumps(_run(cases(name))) + "\n")
            results.flush()


if __name__ == "__main__":
    main()
