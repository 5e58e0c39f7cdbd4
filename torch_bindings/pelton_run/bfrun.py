"""BlueFog's launcher: `bfrun -np 4 python script.py` starts ranks of a program, here or on several hosts by ssh.

The ranks get Open MPI's names for rank and size beside torchrun's, because scripts for BlueFog read those.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pelton_run import baguarun
from pelton_run.command_line import MOST_RANKS
from pelton_run.launcher import OPEN_MPIS_NAMES, Job, JobOptions
from pelton_run.processes import MARK_VARIABLE, TOKEN_VARIABLE
from pelton_run.ssh import add_ssh_option
from pelton_run.variables import is_backend_in_daemon

_PROGRAM = "bfrun"
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_START_TIMEOUT, _JOIN_TIMEOUT = "BLUEFOG_START_TIMEOUT", "PELTON_JOIN_TIMEOUT"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Those of this login, this terminal and this machine mean nothing on another.
_STAYS_HERE = re.compile(
    r"(SSH_|XDG_|DBUS_|LC_TERMINAL|BASH_FUNC_|TERM_).*"
    r"|TERM(INFO|CAP)?|DISPLAY|SHELL(OPTS)?|SHLVL|HOME|USER(NAME)?|LOGNAME|HOSTNAME|MAIL|PWD|OLDPWD|TMPDIR|_"
)
_REFUSED = {
    "--use-infiniband": "Pelton reaches InfiniBand through UCX. Leave the flag out and set PELTON_WIRE=ucx",
    "--extra-mpi-flags": "there is no MPI behind this. Leave the flag out; PELTON_INTERFACE, PELTON_WIRE and "
    "docs/variables.md have what mpirun's flags are mostly used for",
    "--prefix": "it names where Open MPI is installed, and there is no MPI behind this. Leave the flag out",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Starts ranks of a program on this host or several.", allow_abbrev=False
    )
    parser.add_argument("-v", "--version", action="store_true", help="print Pelton's version")
    parser.add_argument("-np", "--num-proc", type=int, dest="ranks", help="number of ranks, on all hosts together")
    parser.add_argument("-p", "--ssh-port", type=int, help="of all hosts (default: ssh's own)")
    parser.add_argument("--network-interface", help="which carries messages between hosts (PELTON_INTERFACE)")
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", help="h1:slots,h2:slots: as many ranks on each (default: this host)")
    hosts.add_argument("-hostfile", "--hostfile", type=Path, help="a file with lines 'host slots=n'")
    parser.add_argument("--timeline-filename", help="each rank writes what it does to this name and its number")
    parser.add_argument("--verbose", action="store_true", help="print the command line first")
    add_ssh_option(parser)
    parser.add_argument("--insecure", action="store_true", help="PELTON_INSECURE=1")
    for flag in _REFUSED:
        parser.add_argument(flag, nargs="?", const="", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


def _slots_of_flag(text: str) -> list[tuple[str, int]]:
    """Hosts and their ranks, of 'h1:2,h2:2'.

    Raises:
      ValueError: a part of it is not a host with its slots.
    """
    found = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        host, _, slots = word.rpartition(":")
        if not host:
            host, slots = word, "1"
        if not slots.isdigit() or int(slots) < 1:
            raise ValueError(f"-H {text}: {word!r} is not host or host:slots")
        found.append((host, int(slots)))
    return found


def _slots_of_file(path: Path) -> list[tuple[str, int]]:
    """Hosts and their ranks, of lines 'host slots=n'; '#' begins a comment.

    Raises:
      ValueError: the file cannot be read, or a line is another.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ValueError(f"-hostfile {path}: {error.strerror}") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        match = re.fullmatch(r"slots=([1-9]\d*)", words[1]) if len(words) == 2 else None
        if match is None and len(words) != 1:
            raise ValueError(f"-hostfile {path}, line {number}: {line!r} is not 'host slots=n'")
        found.append((words[0], int(match[1]) if match else 1))
    return found


def _places(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Hosts with the ranks that each gets: the slots are filled in the order of the hosts, as mpirun does.

    Raises:
      ValueError: there are too few slots.
    """
    hosts = [("localhost", options.ranks)]
    if options.hosts:
        hosts = _slots_of_flag(options.hosts)
    elif options.hostfile:
        hosts = _slots_of_file(options.hostfile)
    left, places = options.ranks, []
    for host, slots in hosts:
        if left > 0:
            places.append((host, min(slots, left)))
            left -= places[-1][1]
    if left > 0:
        raise ValueError(f"-np {options.ranks}: the hosts have {options.ranks - left} slots; give them more")
    return places


def _join_timeout() -> str | None:
    """What BLUEFOG_START_TIMEOUT says, unless PELTON_JOIN_TIMEOUT says something.

    Raises:
      ValueError: it is no number of seconds.
    """
    text = os.environ.get(_START_TIMEOUT)
    if text is None or _JOIN_TIMEOUT in os.environ:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) == 0:
        raise ValueError(f"{_START_TIMEOUT}={text!r}: must be a number of seconds above 0")
    return text


def _variables(options: argparse.Namespace) -> dict[str, str]:
    """What the ranks' environment gets beside this one's.

    Raises:
      ValueError: as `_join_timeout`.
    """
    values = {
        "BLUEFOG_TIMELINE": options.timeline_filename,
        "PELTON_INTERFACE": options.network_interface,
        _JOIN_TIMEOUT: _join_timeout(),
    }
    return {name: value for name, value in values.items() if value is not None}


def _remote_words(options: argparse.Namespace, places: Sequence[tuple[str, int]]) -> list[str]:
    """The command line of `pelton baguarun` that does the same.

    Raises:
      ValueError: the hosts' numbers of ranks differ.
    """
    counts = {count for _, count in places}
    if len(counts) != 1:
        listed = ", ".join(f"{host}:{count}" for host, count in places)
        raise ValueError(f"{listed}: all hosts must have equally many ranks; choose -np and slots so")
    set_here = {**os.environ, **options.variables}
    words = ["--host_list", ",".join(host for host, _ in places), "--nproc_per_node", str(counts.pop())]
    words += ["--ssh", shlex.join(options.ssh), "--no_python", "--open_mpi_names"]
    words += ["--ssh_port", str(options.ssh_port)] if options.ssh_port else []
    words += ["--insecure"] if options.insecure else []
    for name, value in set_here.items():
        is_own = name in (MARK_VARIABLE, TOKEN_VARIABLE)
        if _VARIABLE.fullmatch(name) and not _STAYS_HERE.fullmatch(name) and not is_own:
            words += ["-x", f"{name}={value}"]
    return [*words, *options.command]


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """The flags of a command line, with `places`, `variables` and `has_daemons`; None for the process's own.

    Raises:
      SystemExit: with 2, one is wrong or refused; with 0 after --version.
    """
    parser = _parser()
    options = parser.parse_args(words)
    if options.version:
        from pelton_run.command_line import main as pelton

        sys.exit(pelton(["--version"]))
    for flag, reason in _REFUSED.items():
        if getattr(options, flag[2:].replace("-", "_")) is not None:
            parser.error(f"{flag}: {reason}")
    if options.ranks is None or not 1 <= options.ranks <= MOST_RANKS:
        parser.error(f"-np {options.ranks}: must be between 1 and {MOST_RANKS}")
    if not options.command:
        parser.error("no program: bfrun -np 4 python script.py")
    try:
        options.places = _places(options)
        is_here = len(options.places) == 1 and options.places[0][0] in _LOCAL
        options.variables = _variables(options)
        options.remote = None if is_here else _remote_words(options, options.places)
        options.has_daemons = is_backend_in_daemon()
    except ValueError as error:
        parser.error(str(error))
    return options


def run(words: Sequence[str] | None = None) -> int:
    """Starts the ranks that a command line asks for, and waits for their end.

    Args:
      words: None for the process's own.

    Returns:
      The exit code, as `Job.run` and `baguarun.run` say; 2 where the program cannot be started.

    Raises:
      SystemExit: with 2, a flag is wrong or refused.
    """
    options = parsed(words)
    if options.verbose:
        print(f"{_PROGRAM}: {options.places}: {' '.join(options.command)}", file=sys.stderr)
    if options.remote is not None:
        return baguarun.run(options.remote)
    job_options = JobOptions(
        options.command,
        options.ranks,
        is_insecure=options.insecure,
        variables=options.variables,
        further_names=OPEN_MPIS_NAMES,
        has_daemons=options.has_daemons,
        program=_PROGRAM,
    )
    return Job(job_options).run_or_say(_PROGRAM, options.command[0])


if __name__ == "__main__":
    sys.exit(run())
