"""Bagua's launcher for several hosts: starts `pelton.distributed.launch` on each of them by the system's ssh.

    pelton baguarun --host_list 10.0.0.1,10.0.0.2 --nproc_per_node 4 -x PELTON_TLS_CA train.py

What a host is to do goes through ssh's standard input, so that no variable's value stands on a command line there or
here. The input stays open; its end, by a lost connection too, ends the host's ranks.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import re
import shlex
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pelton_run.bagua_options import add_refusals, spellings
from pelton_run.launch import add_program
from pelton_run.launcher import Job, JobOptions, Rank
from pelton_run.processes import MARK_VARIABLE, signal_group, start_rank
from pelton_run.ssh import add_ssh_option
from pelton_run.variables import value_of

_PROGRAM = "pelton baguarun"
_HOST = re.compile(r"(?P<name>(?:[\w.+-]+@)?(?:\[[\w:.%]+\]|[\w.-]+))(?::(?P<port>\d{1,5}))?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ALWAYS_SENT = ("PATH", "LD_LIBRARY_PATH")
# read takes no byte beyond the line, so that what follows in the input is left for the launcher.
_REMOTE = "exec /bin/sh -c " + shlex.quote('IFS= read -r job && eval "$(printf %s "$job" | base64 -d)"')
_MOST_BYTES = 60_000  # fit into a pipe, so that no write waits for an ssh that has not connected yet
_LINGER_S = 10.0  # the other hosts' ranks learn of a failure by themselves, and their launchers wait 5 s for them
_GRACE_S = 20.0  # longer than a host's launcher takes to end its ranks


@dataclass(frozen=True)
class Host:
    """A host as ssh takes it. Threads: a value. Owns: its texts."""

    name: str  # [user@]host
    port: int | None = None

    @property
    def address(self) -> str:
        """Where other hosts reach it."""
        return self.name.rpartition("@")[2].strip("[]")


def _hosts(text: str) -> list[Host]:
    """The hosts of a list.

    Raises:
      ValueError: it is empty, or names no host in one place; the text says which.
    """
    hosts = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        match = _HOST.fullmatch(word)
        # ssh would take a name that begins with a hyphen for an option.
        if match is None or word.startswith("-") or not 1 <= int(match["port"] or 1) <= 65535:
            raise ValueError(f"--host_list: {word!r} is not [user@]host[:port]")
        name = match["name"].replace("[", "").replace("]", "")
        hosts.append(Host(name, int(match["port"]) if match["port"] else None))
    if not hosts:
        raise ValueError("--host_list h1[:port],h2 or BAGUA_NODE_DOMAIN_NAMES in the environment must name the hosts")
    return hosts


def _sent(words: Sequence[str]) -> dict[str, str]:
    """The variables that go to the hosts.

    Args:
      words: those of -x.

    Raises:
      ValueError: one is no VAR or VAR=value, or is not set here.
    """
    result = {name: os.environ[name] for name in _ALWAYS_SENT if name in os.environ}
    for word in words:
        name, has_value, value = word.partition("=")
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"-x {name!r}: is not the name of a variable")
        if not has_value and name not in os.environ:
            raise ValueError(f"-x {name}: is not set here; write -x {name}=value, or leave it out")
        result[name] = value if has_value else os.environ[name]
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Starts the ranks of a job on several hosts, by ssh.", allow_abbrev=False
    )
    hosts = value_of("BAGUA_NODE_DOMAIN_NAMES", "")
    text = "[user@]h1[:port],h2: the hosts; the first is rank 0's (PELTON_NODE_DOMAIN_NAMES)"
    parser.add_argument(*spellings("--host_list"), default=hosts, help=text)
    port = value_of("BAGUA_SSH_PORT", "") or None
    text = "of the hosts that name none (PELTON_SSH_PORT; default: ssh's own)"
    parser.add_argument(*spellings("--ssh_port"), type=int, default=port, help=text)
    add_ssh_option(parser)
    parser.add_argument(*spellings("--nproc_per_node"), type=int, required=True, help="ranks on each host")
    parser.add_argument(*spellings("--master_addr"), help="where rank 0 is reached (default: the first host)")
    parser.add_argument(*spellings("--master_port"), type=int, help="a free port there (default: 29500)")
    parser.add_argument(*spellings("--bagua_service_port"), type=int, help="port of the tuning service")
    text = "a variable for the ranks; PATH and LD_LIBRARY_PATH are sent where they are set"
    parser.add_argument("-x", action="append", default=[], metavar="VAR[=value]", help=text)
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module, as for python -m")
    text = "the job's token may be sent to other hosts in clear (PELTON_INSECURE=1)"
    parser.add_argument("--insecure", action="store_true", help=text)
    text = "for bfrun: the ranks get Open MPI's names for rank and size, too"
    parser.add_argument("--open_mpi_names", action="store_true", help=text)
    add_refusals(parser)
    add_program(parser)
    return parser


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """The flags of a command line, with its hosts in `host_list` and its variables in `set_env`.

    Args:
      words: None for the process's own.

    Raises:
      SystemExit: with 2, one is wrong, or refused.
    """
    parser = _parser()
    options = parser.parse_args(words)
    try:
        options.host_list = _hosts(options.host_list)
        options.set_env = _sent(options.x)
    except ValueError as error:
        parser.error(str(error))
    if options.nproc_per_node < 1:
        parser.error(f"--nproc_per_node {options.nproc_per_node}: must be at least 1")
    if options.module and options.no_python:
        parser.error("-m and --no_python exclude each other")
    size = max(len(_fed(options, node)) for node in range(len(options.host_list)))
    if size > _MOST_BYTES:
        parser.error(f"arguments and variables (-x) take {size} bytes; at most {_MOST_BYTES} can be sent")
    return options


def parse_args() -> argparse.Namespace:
    """The flags of this process's command line.

    Raises:
      SystemExit: with 2, one is wrong, or refused.
    """
    return parsed(None)


def _launch_words(options: argparse.Namespace, node: int) -> list[str]:
    """The command line of one host's launcher."""
    hosts: list[Host] = options.host_list
    values = {
        "--nnodes": len(hosts),
        "--node_rank": node,
        "--nproc_per_node": options.nproc_per_node,
        "--master_addr": options.master_addr or hosts[0].address,
        "--master_port": options.master_port,
        "--bagua_service_port": options.bagua_service_port,
    }
    words = [sys.executable, "-m", "pelton_run.launch", "--under_ssh"]
    words += [f"{flag}={value}" for flag, value in values.items() if value is not None]
    switches = {
        "--insecure": options.insecure,
        "--module": options.module,
        "--no_python": options.no_python,
        "--open_mpi_names": options.open_mpi_names,
    }
    words += [flag for flag, is_set in switches.items() if is_set]
    return [*words, options.training_script, *options.training_script_args]


def _script(options: argparse.Namespace, node: int) -> str:
    """What one host's shell runs: in the same folder as here, with the variables that are sent."""
    sent: Mapping[str, str] = options.set_env
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sent.items()]
    words = shlex.join(_launch_words(options, node))
    return "\n".join([f"cd {shlex.quote(os.getcwd())} || exit 2", *exports, f"exec {words}"])


def _fed(options: argparse.Namespace, node: int) -> bytes:
    """The script as one line."""
    return base64.b64encode(os.fsencode(_script(options, node))) + b"\n"


def _ssh_words(options: argparse.Namespace, host: Host) -> list[str]:
    """The command line that reaches a host: the same for every job.

    No question is asked (BatchMode), because ssh would ask the terminal from the background, and stop.
    """
    port = host.port or options.ssh_port
    return [*options.ssh, "-T", "-o", "BatchMode=yes", *(["-p", str(port)] if port else []), host.name, _REMOTE]


class HostsJob(Job):
    """A job whose processes are ssh, one for each host.

    Threads: the main thread only, because of the signals. Owns: as `Job`, and the processes' input.
    """

    kind = "host"

    def __init__(self, options: argparse.Namespace) -> None:
        """Args:
        options: as `parsed` returns them.
        """
        super().__init__(JobOptions([], len(options.host_list), _LINGER_S, _GRACE_S, program=_PROGRAM))
        self._flags = options

    def _start(self, stack: contextlib.ExitStack) -> None:
        environment = {**os.environ, MARK_VARIABLE: self._token}
        for node, host in enumerate(self._flags.host_list):
            process = start_rank(_ssh_words(self._flags, host), environment, is_fed=True)
            # A host's own launcher tells a failed rank's last lines.
            rank = Rank(f"{host.name} (node {node})", b"", process, recent=deque(maxlen=0))
            self._ranks.append(rank)
            self._follow(rank)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended already, and its exit code says so
                process.stdin.write(_fed(self._flags, node))
                process.stdin.flush()

    def _pass_on(self, number: int) -> None:
        self._say(f"{signal.Signals(number).name} is not sent to other hosts")

    def _signal_all(self, number: int) -> None:
        """The end of its input ends a host's ranks, and ssh brings what they say until then."""
        for rank in self._ranks:
            assert rank.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                rank.process.stdin.close()
            if rank.code is None and number == signal.SIGKILL:
                signal_group(rank.process, number)


def run(words: Sequence[str] | None) -> int:
    """Starts the ranks that a command line asks for, and waits for their end.

    Args:
      words: None for the process's own.

    Returns:
      The exit code: 0, that of the host that failed first (255 is ssh's own), or 128 + n if signal n ended the job;
      2 where ssh cannot be started.

    Raises:
      SystemExit: with 2, a flag is wrong.
    """
    options = parsed(words)
    return HostsJob(options).run_or_say(_PROGRAM, options.ssh[0])


def main() -> None:
    """Runs this process's command line.

    Raises:
      SystemExit: with the exit code of `run`.
    """
    sys.exit(run(None))


if __name__ == "__main__":
    main()
