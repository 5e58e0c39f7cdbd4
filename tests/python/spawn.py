"""Starts jobs of real processes for tests, always with a time limit."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pelton
import pytest
from cases.registry import cases_of

HERE = Path(__file__).resolve().parent
PACKAGES = Path(pelton.__file__).absolute().parent.parent
# Short, so that a hang is a failure soon; long enough for four ranks on two busy cores.
OPERATION_TIMEOUT_S = 30
LIMIT_PER_MODULE_S = 15
LAUNCHERS = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL", "MV2_")  # how the variables of other launchers begin


@dataclass
class Outcome:
    """How a job ended. Threads: a value. Owns: its texts."""

    code: int
    output: str
    errors: str
    results: dict[int, dict[str, Any]] = field(default_factory=dict)  # by rank


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a job: none of the outer job's variables, and the packages under test."""
    outer = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "PELTON_", "BAGUA_", *LAUNCHERS)
    result = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    result["PYTHONPATH"] = os.pathsep.join([str(HERE), str(PACKAGES)])
    result["OMP_NUM_THREADS"] = "1"
    result["PELTON_TIMEOUT"] = result["PELTON_JOIN_TIMEOUT"] = str(OPERATION_TIMEOUT_S)
    result["PELTON_QUIET"] = "1"
    result.update(changes or {})
    return result


def launcher(world_size: int, *words: object) -> list[str]:
    """The command line that starts a job."""
    return [sys.executable, "-m", "pelton_run", "-np", str(world_size), *map(str, words)]


def run(command: Sequence[str], limit_s: float, changes: Mapping[str, str] | None = None) -> Outcome:
    """Runs a command to its end.

    Raises:
      TimeoutError: it took longer than `limit_s`; it is killed, and its output shown.
    """
    process = subprocess.Popen(
        command, env=environment(changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise TimeoutError(f"{command} took more than {limit_s} s\n{output}\n{errors}") from None
    return Outcome(process.returncode, output, errors)


def srun(world_size: int, script: Path, limit_s: float) -> list[str]:
    """Runs a script as srun without a plug-in for MPI does, and gives the ranks' outputs; errors fail the test."""
    here = {"SLURM_STEP_TASKS_PER_NODE": str(world_size), "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "no-such-host"}
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(world_size), **here}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env=environment({**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        texts = [process.communicate(timeout=limit_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), texts
    return [output for output, _ in texts]


_wanted: dict[int, set[str]] = {}


def is_running(pid: int) -> bool:
    """Whether a process is there that has not ended yet."""
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def await_until(condition: Callable[[], object], limit_s: float = 30.0) -> None:
    """Looks until a condition holds; an assertion fails if it does not in time."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not in {limit_s:g} s"
        time.sleep(0.05)


def want_cases(world_size: int, module: str) -> None:
    """Says that a module's cases are needed; to be called for all before the first is run."""
    _wanted.setdefault(world_size, set()).add(module)


@functools.cache
def run_cases(world_size: int) -> Outcome:
    """Runs the cases of all wanted modules in one job, once per test session: importing torch costs every rank
    seconds. The limit ends a hang; it grows with the modules, so that a busy machine does not reach it."""
    modules = sorted(_wanted[world_size])
    return run_modules(world_size, modules, max(240, LIMIT_PER_MODULE_S * len(modules)))


def run_modules(
    world_size: int,
    modules: Sequence[str],
    limit_s: float = 240,
    changes: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
) -> Outcome:
    """Runs the cases of some modules in a job of its own, with changes to its environment and flags of the launcher."""
    with tempfile.TemporaryDirectory() as folder:
        command = launcher(world_size, *words, "--linger", 5, HERE / "rank_main.py", folder, *modules)
        try:
            outcome = run(command, limit_s, changes)
        except TimeoutError as error:  # what was done until then counts, and nobody waits a second time
            outcome = Outcome(-1, "", str(error))
        for rank in range(world_size):
            path = Path(folder) / f"rank{rank}.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            outcome.results[rank] = {entry["name"]: entry for entry in map(json.loads, lines)}
    return outcome


def case_ids(module: str) -> list[tuple[int, str]]:
    """(world size, name) of every case of a module, for parametrize. Two cores start eight ranks in half a minute:
    tools/test --long does.
    """
    most = 8 if "PELTON_LONG" in os.environ else 4
    return [(size, case.name) for case in cases_of(module) for size in case.world_sizes if size <= most]


def check_case(module: str, world_size: int, name: str) -> None:
    """Fails with every rank's traceback unless the case went well on all ranks, or could be run on none."""
    check_outcome(run_cases(world_size), module, world_size, name)


def check_outcome(outcome: Outcome, module: str, world_size: int, name: str) -> None:
    """The same of a job that has ended."""
    problems = []
    for rank in range(world_size):
        entry = outcome.results[rank].get(f"{module}.{name}")
        if entry is None:
            problems.append(f"rank {rank} never finished {name}; the job ended with {outcome.code}:\n{outcome.errors}")
        elif entry["error"]:
            problems.append(f"rank {rank}:\n{entry['error']}")
    assert not problems, "\n".join(problems)
    reasons = {outcome.results[rank][f"{module}.{name}"]["not_run"] for rank in range(world_size)} - {""}
    if reasons:
        pytest.skip(", ".join(sorted(reasons)))
