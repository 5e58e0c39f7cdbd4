"""Lightning 2 with the strategy "bagua"."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from lightning_main import ALGORITHMS, BY_THE_CLOCK, OPTIMIZERS, OPTIONS, REMEMBERED, REPEATING
from spawn import HERE, Outcome, launcher, run

SCRIPT = HERE / "lightning_main.py"
LIMIT_S = 600  # it trains some eighty times


@functools.cache
def whole_run(part: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return run(launcher(2, SCRIPT, folder, part), LIMIT_S)


def check_part(part: str, check: str) -> None:
    outcome = whole_run(part)
    for rank in range(2):
        assert f"[rank {rank}] {check}\n" in outcome.output, outcome.output + outcome.errors
    assert outcome.code == 0, outcome.errors


@pytest.mark.parametrize("check", ["as under DDP", *ALGORITHMS, "refused", "reduces without a group"])
def test_it_trains(check: str) -> None:
    check_part("train", check)


@pytest.mark.parametrize("check", [*REPEATING, "files"])
def test_it_resumes(check: str) -> None:
    check_part("resume", check)


def test_what_is_tried_is_registered() -> None:
    for names in (BY_THE_CLOCK, OPTIMIZERS, OPTIONS, REMEMBERED):
        assert set(names) <= set(ALGORITHMS)


# Each takes half a minute, and what else re-shards is test_saving's.
@pytest.mark.parametrize("algorithm", REMEMBERED if "PELTON_LONG" in os.environ else ["bytegrad"])
def test_another_number_of_ranks_goes_on(algorithm: str, tmp_path: Path) -> None:
    for ranks, part in ((2, "half"), (3, "rest")):
        outcome = run(launcher(ranks, SCRIPT, tmp_path, part, algorithm), LIMIT_S)
        assert outcome.code == 0, outcome.errors
        assert outcome.output.count("done") == ranks


def test_it_trains_under_lightnings_other_package() -> None:
    """`import pytorch_lightning as pl`, which shares no classes with `lightning`."""
    outcome = run(launcher(2, HERE / "pytorch_lightning_main.py"), LIMIT_S)
    assert outcome.code == 0, outcome.output + outcome.errors
    for check in ("by name", "by class", "refused"):
        assert outcome.output.count(f"] {check}\n") == 2


def test_lightnings_own_launcher_starts_the_other_rank(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\n"
        "import torch\nfrom lightning_main import Net, fit, weights\n"
        "module = Net()\ntrainer = fit('bagua', module)\n"
        "name = f'rank{trainer.global_rank}_of_{trainer.world_size}.pt'\n"
        f"torch.save(weights(module), {str(tmp_path)!r} + '/' + name)\n"
    )
    outcome = run([sys.executable, str(script)], LIMIT_S)
    assert outcome.code == 0, outcome.errors
    first, second = (torch.load(tmp_path / f"rank{rank}_of_2.pt") for rank in range(2))
    assert torch.equal(first, second)


def test_one_of_several_processes_does_not_train_alone() -> None:
    """Lightning knows Open MPI by mpi4py only; it writes the world size 1 before its strategy is set up."""
    program = (
        "import lightning, pelton.errors, pelton.lightning\n"
        "try:\n"
        "    lightning.Trainer(strategy='bagua', accelerator='cpu')\n"
        "except pelton.errors.FailedPrecondition as error:\n"
        "    print(error)\n"
    )
    variables = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    outcome = run([sys.executable, "-c", program], LIMIT_S, variables)
    assert "OMPI_COMM_WORLD_SIZE in the environment: 2 processes were started" in outcome.output, outcome.errors
    outcome = run([sys.executable, "-c", program], LIMIT_S, {**variables, "WORLD_SIZE": "1"})
    assert (outcome.code, outcome.output) == (0, ""), outcome.errors
