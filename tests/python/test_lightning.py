"""Lightning 2 with the strategy "bagua"."""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path

import pytest
from lightning_main import ALGORITHMS
from spawn import HERE, Outcome, launcher, run

SCRIPT = HERE / "lightning_main.py"
LIMIT_S = 300


@functools.cache
def whole_run() -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return run(launcher(2, SCRIPT, folder), LIMIT_S)


@pytest.mark.parametrize("check", ["as under DDP", *ALGORITHMS, "resumed", "refused"])
def test_it_trains(check: str) -> None:
    outcome = whole_run()
    for rank in range(2):
        assert f"[rank {rank}] {check}\n" in outcome.output, outcome.output + outcome.errors
    assert outcome.code == 0, outcome.errors


def test_lightnings_own_launcher_starts_the_other_rank(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\n"
        "from lightning_main import Net, fit, weights\n"
        "module = Net()\ntrainer = fit('bagua', module)\n"
        "print(f'rank {trainer.global_rank} of {trainer.world_size}: {weights(module).sum():.4f}', flush=True)\n"
    )
    outcome = run([sys.executable, str(script)], LIMIT_S)
    assert outcome.code == 0, outcome.errors
    sums = [outcome.output.split(f"rank {rank} of 2: ")[1].split()[0] for rank in range(2)]
    assert sums[0] == sums[1]
