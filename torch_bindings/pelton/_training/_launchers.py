"""What SLURM, Open MPI, MVAPICH and the process managers of PMI say about this process's place in its job.

Their variables are given torchrun's names. What stands in the environment under those names counts more: a launcher
is believed only where it does not contradict them, because torchrun and `pelton run` are started from such jobs too.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass

from pelton.errors import FailedPrecondition, InvalidArgument

_REMEDY = (
    "Start one process per task with the launcher's own command (srun, mpirun), or with `pelton run` or torchrun, "
    "or set RANK and WORLD_SIZE on every process (WORLD_SIZE=1 for one that trains alone)"
)
_NOT_ALONE = ("SLURM_STEP_ID", "SLURM_STEPID", "MASTER_ADDR")  # of srun's tasks; for ranks that meet
_FIRST_PORT, _PORTS = 15000, 16384  # below what Linux gives to programs that ask for any


@dataclass(frozen=True)
class _Launcher:
    """The names of one launcher's variables. Threads: a value. Owns: nothing."""

    rank: str
    sizes: tuple[str, ...]  # the first that is set counts
    local_rank: str
    local_size: str


# An outer one starts an inner one's daemons, whose variables are then the job's, so inner ones come first.
_LAUNCHERS = (
    _Launcher(
        "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    _Launcher(
        "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",), "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"
    ),
    _Launcher("PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Launcher("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"), "SLURM_LOCALID", ""),
    _Launcher("PMIX_RANK", (), "", ""),
)


def variables() -> dict[str, str]:
    """The variables of torchrun as far as they are missing in the environment and a launcher knows them.

    Raises:
      InvalidArgument: a launcher speaks of several tasks, but not of this one's number, or of a number, but not of
        how many there are, unless that is task 0 of a script that SLURM's sbatch has started and nothing speaks of
        others; or one of its variables is not a number.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return {}
    for launcher in _LAUNCHERS:
        found = _from(launcher)
        if found is not None:
            return {name: value for name, value in found.items() if name not in os.environ}
    return {}


def source() -> str:
    """Which variables the rank and the world size come from, for errors."""
    if "RANK" not in os.environ:
        for launcher in _LAUNCHERS:
            if launcher.rank in os.environ:
                return ", ".join([launcher.rank, *(name for name in launcher.sizes[:1] if name in os.environ)])
    return "RANK, WORLD_SIZE"


def adopt() -> None:
    """Writes `variables()` into the environment, for torch's own rendezvous and for other libraries."""
    found = variables()
    os.environ.update(_master(found) if found else {}, **found)


def refuse_to_be_alone(caller: str, framework: str, started: int, remedy: str) -> None:
    """Of a framework that takes a process for a job of its own, and says nothing, where it knows no launcher of it.

    Args:
      caller: its class that has done so.
      framework: its name.
      started: how many processes the environment speaks of.
      remedy: what to do, but for a process that is meant to be alone.

    Raises:
      FailedPrecondition: there are several.
    """
    if started > 1:
        raise FailedPrecondition(
            f"{caller}: {source()} in the environment: {started} processes were started, and {framework} has taken "
            f"this one for a job of its own, whose model would train alone. {remedy}; or set WORLD_SIZE=1 for a "
            "process that is meant to be alone"
        )


def job_identity() -> str:
    """A word that two jobs which share a machine do not share; empty where nothing has one."""
    names = ("TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
    own = next((os.environ[name] for name in names if os.environ.get(name)), "")
    slurm = [os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    return own or ".".join(filter(None, slurm))


def _from(launcher: _Launcher) -> dict[str, str] | None:
    """What one launcher says; None if it says nothing, or the environment says otherwise."""
    said_rank = os.environ.get("RANK")
    said_size = os.environ.get("WORLD_SIZE")
    rank = _number(launcher.rank)
    size_name = next((name for name in launcher.sizes if name in os.environ), "")
    size = _number(size_name) if size_name else None
    if rank is None and size is None:
        return None
    if said_size is not None and size is not None and said_size != str(size):
        return None
    if said_rank is not None and rank is not None and said_rank != str(rank):
        return None
    if rank is None and said_rank is None:
        if size == 1 or said_size == "1":
            return None
        raise InvalidArgument(
            f"{size_name}={size} in the environment speaks of {size} tasks, but {launcher.rank} and RANK, which would "
            f"tell this one's number, are not set. {_REMEDY}"
        )
    if size is None and said_size is None:
        if launcher.rank == "SLURM_PROCID" and rank == 0 and not any(name in os.environ for name in _NOT_ALONE):
            return None  # sbatch without -n: a script of one task
        raise InvalidArgument(
            f"{launcher.rank}={rank} in the environment is this task's number, but neither "
            f"{' nor '.join([*launcher.sizes, 'WORLD_SIZE'])} tells how many there are. {_REMEDY}"
        )
    found = {"RANK": rank, "WORLD_SIZE": size, **_local(launcher, rank)}
    return {name: str(value) for name, value in found.items() if value is not None}


def _local(launcher: _Launcher, rank: int | None) -> dict[str, int | None]:
    """Numbers within the host, and the host's, from the launcher, or from SLURM if that means the same task."""
    numbers = {"LOCAL_RANK": _number(launcher.local_rank), "LOCAL_WORLD_SIZE": _number(launcher.local_size)}
    if rank is None or _number("SLURM_PROCID") != rank:
        return numbers
    if numbers["LOCAL_RANK"] is None:
        numbers["LOCAL_RANK"] = _number("SLURM_LOCALID")
    if numbers["LOCAL_WORLD_SIZE"] is None:
        numbers["LOCAL_WORLD_SIZE"] = _slurm_tasks_here()
    return {**numbers, "NODE_RANK": _number("SLURM_NODEID")}


def _slurm_tasks_here() -> int | None:
    """Source: "SLURM_TASKS_PER_NODE" in srun(1): "2(x3),1" are three hosts with two tasks, and one with one."""
    text = os.environ.get("SLURM_STEP_TASKS_PER_NODE", os.environ.get("SLURM_TASKS_PER_NODE", ""))
    tasks: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if match is None:
            return None
        tasks += [int(match[1])] * int(match[2] or 1)
    node = _number("SLURM_NODEID")
    return tasks[node] if node is not None and node < len(tasks) else None


def _master(found: dict[str, str]) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT as far as they are missing and can be derived."""
    master = {}
    size = found.get("WORLD_SIZE", os.environ.get("WORLD_SIZE"))
    if "MASTER_ADDR" not in os.environ:
        is_one_host = found.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_WORLD_SIZE")) == size
        address = "127.0.0.1" if is_one_host else _slurm_first_host()
        if address:
            master["MASTER_ADDR"] = address
    identity = job_identity()
    if "MASTER_PORT" not in os.environ and identity:
        master["MASTER_PORT"] = str(_FIRST_PORT + zlib.crc32(identity.encode()) % _PORTS)
    return master


def _slurm_first_host() -> str | None:
    """Source: "SLURM_STEP_NODELIST" in srun(1): "gpu[01-04,7],login" begins with gpu01, where task 0 runs."""
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    text = next((os.environ[name] for name in names if os.environ.get(name)), "")
    match = re.match(r"([A-Za-z0-9._-]+)(?:\[(\d+)[^\]]*\])?([A-Za-z0-9._-]*)(?:,|$)", text)
    return f"{match[1]}{match[2] or ''}{match[3]}" if match else None


def _number(name: str) -> int | None:
    text = os.environ.get(name) if name else None
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}", text):
        raise InvalidArgument(f"{name}={text!r} in the environment: not a number of tasks or of one task")
    return int(text)
