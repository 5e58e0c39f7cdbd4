"""What SLURM, Open MPI and PMI say of a process's place: understood, or an error, never a job of one rank."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from pelton._training import _launchers, _rendezvous
from pelton.errors import InvalidArgument
from pelton.torch_api import env
from spawn import LAUNCHERS, run, srun

OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_NTASKS": "16",  # of the allocation
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
    "SLURM_STEP_NODELIST": "gpu[08-09,12],login",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-host-77@1",
    "PMIX_RANK": "1",
}
PMI = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in OURS or name.startswith((*LAUNCHERS, "TORCHELASTIC_", "PELTON_")):
            monkeypatch.delenv(name)


def _set(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (SLURM, (5, 7, 1, 3, 2)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2, 0, 1, 0)),
        (OPEN_MPI, (1, 4, 1, 4, 0)),
        (PMI, (3, 4, 1, 2, 0)),
        ({**PMI, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, (3, 4, 1, 2, 0)),  # srun started PMI's daemons
        ({"PMIX_RANK": "2", "WORLD_SIZE": "3"}, (2, 3, 0, 1, 0)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK": "1"}, (1, 2, 1, 1, 0)),
        ({**SLURM, "RANK": "0", "WORLD_SIZE": "2"}, (0, 2, 0, 1, 0)),  # torchrun in a task of SLURM's
        ({**SLURM, "WORLD_SIZE": "1"}, (0, 1, 0, 1, 0)),
        ({"SLURM_NTASKS": "4", "WORLD_SIZE": "1"}, (0, 1, 0, 1, 0)),
        ({"SLURM_NTASKS": "1"}, (0, 1, 0, 1, 0)),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, (0, 1, 0, 1, 0)),  # a script that sbatch has started without -n
        ({}, (0, 1, 0, 1, 0)),
    ],
)
def test_numbers(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[int, ...]) -> None:
    _set(monkeypatch, variables)
    getters = (env.get_rank, env.get_world_size, env.get_local_rank, env.get_local_size, env.get_node_rank)
    assert tuple(getter() for getter in getters) == expected


@pytest.mark.parametrize(
    ("variables", "texts"),
    [
        ({"SLURM_NTASKS": "4"}, ["SLURM_NTASKS=4", "SLURM_PROCID", "WORLD_SIZE=1", "srun"]),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, ["OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK"]),
        ({"PMI_SIZE": "8"}, ["PMI_SIZE=8", "PMI_RANK"]),
        ({"PMIX_RANK": "1"}, ["PMIX_RANK=1", "WORLD_SIZE"]),
        ({"SLURM_PROCID": "1"}, ["SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"]),
        # Of one of srun's tasks whose number of tasks was lost, and of ranks that are to meet.
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, ["SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE=1"]),
        ({"SLURM_PROCID": "0", "SLURM_STEPID": "0"}, ["SLURM_PROCID=0", "WORLD_SIZE=1"]),
        ({"SLURM_PROCID": "0", "MASTER_ADDR": "127.0.0.1"}, ["SLURM_PROCID=0", "WORLD_SIZE=1"]),
        ({"SLURM_PROCID": "one", "SLURM_NTASKS": "2"}, ["SLURM_PROCID='one'"]),
    ],
)
def test_what_is_missing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], texts: list[str]
) -> None:
    import pelton.torch_api as bagua

    _set(monkeypatch, variables)
    with pytest.raises(InvalidArgument) as raised:
        bagua.init_process_group()
    for text in texts:
        assert text in str(raised.value)


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        (SLURM, "gpu08"),
        ({**SLURM, "SLURM_STEP_NODELIST": "alpha,beta"}, "alpha"),
        ({**SLURM, "SLURM_STEP_NODELIST": "n-7.rack"}, "n-7.rack"),
        (OPEN_MPI, "127.0.0.1"),
        ({**OPEN_MPI, "MASTER_ADDR": "elsewhere"}, "elsewhere"),
    ],
)
def test_where_rank_0_is(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], address: str) -> None:
    _set(monkeypatch, variables)
    for name in OURS:  # so that what is written is undone
        monkeypatch.setenv(name, os.environ.get(name, ""))
        if not os.environ[name]:
            del os.environ[name]
    _launchers.adopt()
    assert os.environ["MASTER_ADDR"] == address
    assert 15000 <= int(os.environ["MASTER_PORT"]) < 32768
    assert os.environ["RANK"] == str(env.get_rank())


def test_what_cannot_be_derived_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, PMI)
    with pytest.raises(InvalidArgument, match=r"MASTER_ADDR and MASTER_PORT missing.*rank 3 of 4.*PMI_RANK, PMI_SIZE"):
        _rendezvous.from_environment(3, 4, 1.0)


PROGRAM = """
import torch
import pelton.torch_api as bagua
bagua.init_process_group()
tensor = torch.tensor([1.0 + bagua.get_rank()])
bagua.allreduce_inplace(tensor)
print(f"rank {bagua.get_rank()} sum={tensor.item():g} of {torch.distributed.get_world_size()}", flush=True)
"""


def test_a_job_of_slurm(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert srun(2, program, 120) == ["rank 0 sum=3 of 2\n", "rank 1 sum=3 of 2\n"]


def test_a_job_of_open_mpi(tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun here")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, str(program)]
    outcome = run(words, 120)
    assert sorted(outcome.output.splitlines()) == ["rank 0 sum=3 of 2", "rank 1 sum=3 of 2"], outcome.errors
