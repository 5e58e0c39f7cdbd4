"""`python -m pelton.distributed.run`: torch's own elastic launcher (torchrun) with Bagua's further flags.

    python -m pelton.distributed.run --nproc_per_node 4 --default_bucket_size 1048576 train.py

All of torchrun's flags are there and mean what they mean there; where Bagua has another default, it is Bagua's. The
further flags become Bagua's environment variables, under both names.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pelton_run import bagua_options
from pelton_run.bagua_options import spellings
from pelton_run.processes import MARK_VARIABLE, Guard
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.launcher.api import LaunchConfig

_PROGRAM = "pelton.distributed.run"
_BAGUAS_DEFAULTS = {"max_restarts": 3, "monitor_interval": 5.0, "start_method": "spawn"}


def get_args_parser() -> argparse.ArgumentParser:
    """A parser of torchrun's flags and Bagua's."""
    parser = torchrun.get_args_parser()
    parser.prog = _PROGRAM
    # torchrun takes every flag's default from such a variable, and what the user has set there counts more.
    unset = {name: value for name, value in _BAGUAS_DEFAULTS.items() if f"PET_{name.upper()}" not in os.environ}
    parser.set_defaults(**unset)
    bagua_options.add_flags(parser)
    return parser


def parse_args(args: Sequence[str] | None) -> argparse.Namespace:
    """The flags of a command line.

    Args:
      args: the words after the program; None for the process's own.

    Raises:
      SystemExit: with 2, one is wrong, or refused.
    """
    parser = get_args_parser()
    text = "ranks find LOCAL_RANK in their environment and get no --local-rank; this is so anyway"
    parser.add_argument(*spellings("--use_env"), action="store_true", default=True, help=text)
    return parser.parse_args(args)


def config_from_args(args: argparse.Namespace) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """What torch's `elastic_launch` takes, and the command of a rank with its arguments.

    The variables that the flags become are set in this process's environment, which the ranks inherit.
    """
    os.environ.update(bagua_options.variables_of(args))
    config: tuple[LaunchConfig, Callable[..., Any] | str, list[str]] = torchrun.config_from_args(args)
    return config


def run(args: argparse.Namespace) -> None:
    """Starts the ranks that parsed flags ask for, and waits for their end. Where this process is killed, they are, too.

    The variables that the flags become are set in this process's environment, which the ranks inherit.

    Raises:
      ChildFailedError: a rank failed, and has failed again after each restart.
    """
    os.environ.update(bagua_options.variables_of(args))
    with _guarded():
        torchrun.run(args)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """A kill -9 of torch's launcher alone would leave the ranks. One that started this one has a guard of its own."""
    if os.environ.get(MARK_VARIABLE):
        yield
        return
    os.environ[MARK_VARIABLE] = secrets.token_hex(16)
    guard = Guard(os.environ[MARK_VARIABLE])
    try:
        yield
    finally:
        guard.dismiss()
        del os.environ[MARK_VARIABLE]  # the next run has a guard, too


@record
def main(args: Sequence[str] | None = None) -> None:
    """Runs a command line; None for the process's own.

    Raises:
      Exception: as `parse_args` and `run`.
    """
    run(parse_args(args))


if __name__ == "__main__":
    main()
