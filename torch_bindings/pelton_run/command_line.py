"""The commands `pelton` and `pelton run`."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from pelton_run.bagua_options import spellings
from pelton_run.launcher import Job, JobOptions

MOST_RANKS = 1024
TRAINER_GRACE_S = 60.0

_EPILOG = """\
Each rank gets torchrun's environment variables (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT, ...), and OMP_NUM_THREADS=1 where it is not set and there are several ranks. Output lines begin with
"[rank N] "; standard input is empty. When a rank fails, the others have --linger seconds to end by themselves, then
get SIGTERM, and after --grace seconds SIGKILL; with --max-restarts all of them are started again then. The exit code is
that of the rank that failed first. When all ranks have ended well, what they have left running has --grace seconds,
too; a process with a session of its own is left alone.
"""


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Starts ranks of a program on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-np", "--nproc", *spellings("--nproc_per_node"), type=int, default=1, help="number of ranks (default: 1)"
    )
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("--no-python", action="store_true", help="the program is started directly")
    parser.add_argument("--linger", type=float, default=5.0, metavar="S", help="seconds (default: 5)")
    parser.add_argument("--grace", type=float, default=10.0, metavar="S", help="seconds (default: 10)")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="the job's token may be sent to other hosts in clear (PELTON_INSECURE=1)",
    )
    parser.add_argument(
        "--backend",
        choices=("process", "daemon"),
        default=os.environ.get("PELTON_BACKEND", "process"),
        help="where the backend of a rank works: in the rank, or in a pelton-daemon beside it "
        "(default: PELTON_BACKEND, or process)",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="start all ranks again when one has failed, at most N times (default: 0)",
    )
    parser.add_argument(
        "--trainer-grace",
        type=float,
        default=TRAINER_GRACE_S,
        metavar="SECONDS",
        help="with --backend daemon and --max-restarts: when one rank has died, the others wait for it alone to be "
        f"started again, where its snapshots allow it (default: {TRAINER_GRACE_S:g}; 0: all are started again)",
    )
    parser.add_argument("program", help="script, module or program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def command_of(program: Sequence[str], is_module: bool, is_started_directly: bool) -> list[str]:
    """The command line of a rank: of a script, a module or a program, with its arguments."""
    if is_started_directly:
        return list(program)
    return [sys.executable, "-m", *program] if is_module else [sys.executable, *program]


def run(arguments: Sequence[str] | None = None, program: str = "pelton run") -> int:
    """Starts the ranks that the command line asks for and waits for their end.

    Args:
      arguments: those after `pelton run`; None for the process's own.
      program: the name that help and errors show.

    Returns:
      The exit code, as `Job.run` says; 2 where the program cannot be started.

    Raises:
      SystemExit: with 2, a bad argument.
    """
    parser = _parser(program)
    options = parser.parse_args(arguments)
    if not 1 <= options.nproc <= MOST_RANKS:
        parser.error(f"-np {options.nproc}: must be between 1 and {MOST_RANKS}")
    if min(options.linger, options.grace) < 0:
        parser.error(f"--linger {options.linger:g} --grace {options.grace:g}: must not be negative")
    if options.max_restarts < 0:
        parser.error(f"--max-restarts {options.max_restarts}: must be 0 or more")
    if not 0 <= options.trainer_grace < float("inf"):
        parser.error(f"--trainer-grace {options.trainer_grace:g}: must be a number of seconds from 0")
    if options.module and options.no_python:
        parser.error("-m and --no-python exclude each other")
    command = command_of([options.program, *options.arguments], options.module, options.no_python)
    if options.backend not in ("process", "daemon"):  # argparse does not check a default
        parser.error(f"PELTON_BACKEND={options.backend}: must be process or daemon")
    has_daemons = options.backend == "daemon"
    job = Job(
        JobOptions(
            command,
            options.nproc,
            options.linger,
            options.grace,
            options.insecure,
            has_daemons=has_daemons,
            max_restarts=options.max_restarts,
            trainer_grace_s=options.trainer_grace if options.max_restarts > 0 else 0.0,
        )
    )
    return job.run_or_say(program, options.program)


def _version() -> int:
    try:
        print(f"pelton {importlib.metadata.version('pelton')}")
    except importlib.metadata.PackageNotFoundError:
        print("pelton is not installed; it runs from a folder", file=sys.stderr)
        return 1
    return 0


def _algorithms(words: Sequence[str]) -> int:
    from pelton import _algorithms as listing  # which imports torch

    if words == ["--markdown"]:
        print(listing.as_markdown(), end="")
        return 0
    found = [one for one in listing.algorithms() if list(words) in ([], [one.name])]
    if not found:
        print(f"pelton algorithms: no algorithm {words[0]!r}; `pelton algorithms` lists all", file=sys.stderr)
        return 1
    print("\n".join(listing.as_text(one) for one in found))
    return 0


_USAGE = """\
usage: pelton run [-h] [-np N] [-m] program ...    start ranks of a program on this machine
       pelton baguarun [-h] --host_list H1,H2 ...  start ranks on several hosts, by ssh
       pelton doctor [-h] [--host_list H1,H2 ...]  look at what a job here depends on, and say what to do
       pelton status [-h] [FOLDER]                 what the ranks of this host's jobs are at
       pelton top [-h] [FOLDER]                    the same, live
       pelton algorithms [NAME | --markdown]       list the algorithms, with their options
       pelton topology [NAME] [-n RANKS] [--svg F] what graphs over ranks cost, and how fast they mix
       pelton --version"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The `pelton` command: its first word chooses what to do."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] == "run":
        return run(words[1:])
    if words[:1] == ["baguarun"]:
        from pelton_run import baguarun  # it is seldom wanted

        return baguarun.run(words[1:])
    if words[:1] == ["doctor"]:
        from pelton_run import doctor  # it is seldom wanted, and `pelton run` starts sooner without it

        return doctor.main(words[1:])
    if words[:1] in (["status"], ["top"]):
        from pelton_run import status

        return (status.status if words[0] == "status" else status.top)(words[1:])
    if words[:1] == ["algorithms"] and len(words) <= 2:
        return _algorithms(words[1:])
    if words[:1] == ["topology"]:
        from pelton import _topology  # which imports torch

        return _topology.main(words[1:])
    if words == ["--version"]:
        return _version()
    wants_help = words[:1] in (["-h"], ["--help"])
    print(_USAGE, file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2
