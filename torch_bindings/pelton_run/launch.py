"""Bagua's static launcher, for one host or several: the same command on each, with another --node_rank.

    python -m pelton.distributed.launch --nnodes 2 --node_rank 0 --master_addr 10.0.0.1 --nproc_per_node 4 train.py

`python -m pelton_run.launch` is the same and does not import torch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pelton_run import bagua_options
from pelton_run.bagua_options import spellings
from pelton_run.command_line import MOST_RANKS, command_of
from pelton_run.launcher import OPEN_MPIS_NAMES, Job, JobOptions, Place
from pelton_run.ports import LOOPBACK
from pelton_run.variables import is_backend_in_daemon, value_of

_PROGRAM = "pelton.distributed.launch"
_HIGHEST_PORT = 65535


def add_program(parser: argparse.ArgumentParser) -> None:
    """Adds what is started: the script and its arguments, and how it is started."""
    parser.add_argument(*spellings("--no_python"), action="store_true", help="the program is started directly")
    parser.add_argument("training_script", help="script, module or program")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its arguments")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Starts the ranks of one host of a job on one host or several.", allow_abbrev=False
    )

    def number(flag: str, default: int, text: str) -> None:
        parser.add_argument(*spellings(flag), type=int, default=default, help=f"{text} (default: {default})")

    number("--nnodes", 1, "number of hosts")
    number("--node_rank", 0, "this host's number, from 0")
    number("--nproc_per_node", 1, "ranks on each host")
    parser.add_argument(*spellings("--master_addr"), default=LOOPBACK, help="where host 0 is reached")
    number("--master_port", 29500, "a free port there, by which the ranks meet")
    text = "every rank gets --local_rank=N as its first argument"
    parser.add_argument(*spellings("--set_additional_flag"), action="store_true", help=text)
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module, as for python -m")
    text = "folder for node_N_local_rank_M_stdout and _stderr, which take the ranks' output"
    parser.add_argument("--logdir", type=Path, help=text)
    is_on = bagua_options.is_on("BAGUA_REPORT_METRICS")
    parser.add_argument(*spellings("--report_metrics"), action="store_true", default=is_on, help="BAGUA_REPORT_METRICS")
    hosts = value_of("BAGUA_NODE_DOMAIN_NAMES", "") or None
    parser.add_argument(*spellings("--host_list"), default=hosts, help="the job's hosts (PELTON_NODE_DOMAIN_NAMES)")
    port = value_of("BAGUA_SSH_PORT", "") or None
    parser.add_argument(*spellings("--ssh_port"), type=int, default=port, help="of those hosts (PELTON_SSH_PORT)")
    bagua_options.add_flags(parser)
    text = "the job's token may be sent to other hosts in clear (PELTON_INSECURE=1)"
    parser.add_argument("--insecure", action="store_true", help=text)
    text = "for baguarun: the job ends with standard input, and the exit code is the failed rank's"
    parser.add_argument("--under_ssh", action="store_true", help=text)
    text = "for bfrun: the ranks get Open MPI's names for rank and size, too"
    parser.add_argument("--open_mpi_names", action="store_true", help=text)
    add_program(parser)
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where the flags contradict each other, or the environment is wrong."""
    if options.nnodes < 1:
        parser.error(f"--nnodes {options.nnodes}: must be at least 1")
    if not 0 <= options.node_rank < options.nnodes:
        parser.error(f"--node_rank {options.node_rank}: must be between 0 and {options.nnodes - 1} (--nnodes)")
    if options.nproc_per_node < 1 or options.nproc_per_node * options.nnodes > MOST_RANKS:
        parser.error(
            f"--nproc_per_node {options.nproc_per_node} --nnodes {options.nnodes}: must be between 1 and "
            f"{MOST_RANKS} ranks altogether"
        )
    if not 1 <= options.master_port <= _HIGHEST_PORT:
        parser.error(f"--master_port {options.master_port}: must be between 1 and {_HIGHEST_PORT}")
    if options.module and options.no_python:
        parser.error("-m and --no_python exclude each other")
    if options.logdir is not None and options.logdir.exists() and not options.logdir.is_dir():
        parser.error(f"--logdir {options.logdir}: is not a folder")
    try:
        options.has_daemons = is_backend_in_daemon()
    except ValueError as error:
        parser.error(str(error))


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """The flags of a command line; None for the process's own.

    Raises:
      SystemExit: with 2, one is wrong, or refused.
    """
    parser = _parser()
    options = parser.parse_args(words)
    _check(parser, options)
    return options


def parse_args() -> argparse.Namespace:
    """The flags of this process's command line.

    Raises:
      SystemExit: with 2, one is wrong, or refused.
    """
    return parsed(None)


def job_options(options: argparse.Namespace) -> JobOptions:
    """What to start, as the launcher takes it."""
    script = [options.training_script]
    begin = command_of(script, options.module, options.no_python)
    variables = bagua_options.variables_of(options)
    others = {
        "BAGUA_REPORT_METRICS": int(options.report_metrics),
        "BAGUA_NODE_DOMAIN_NAMES": options.host_list,
        "BAGUA_SSH_PORT": options.ssh_port,
    }
    set_ones = {name: value for name, value in others.items() if value is not None}
    return JobOptions(
        [*begin, *options.training_script_args],
        options.nproc_per_node,
        is_insecure=options.insecure,
        place=Place(options.nnodes, options.node_rank, options.master_addr, options.master_port),
        variables={**variables, **bagua_options.under_both_names(set_ones, {"BAGUA_REPORT_METRICS": 0})},
        further_names=OPEN_MPIS_NAMES if options.open_mpi_names else {},
        log_folder=options.logdir,
        local_rank_at=len(begin) if options.set_additional_flag else None,
        ends_with_input=options.under_ssh,
        program=_PROGRAM,
        has_daemons=options.has_daemons,
    )


def main() -> None:
    """Starts the ranks that this process's command line asks for, and waits for their end.

    Raises:
      CalledProcessError: a rank failed; the others have been ended.
      SystemExit: a flag was wrong, the program could not be started, or a signal ended the job.
    """
    options = job_options(parse_args())
    job = Job(options)
    try:
        code = job.run()
    except OSError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        sys.exit(2)
    if job.failed_code is not None and not options.ends_with_input:
        raise subprocess.CalledProcessError(job.failed_code, options.command)
    sys.exit(code)


if __name__ == "__main__":
    main()
