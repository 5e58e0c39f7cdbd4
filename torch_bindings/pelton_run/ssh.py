"""The option that names the program by which hosts are reached."""

from __future__ import annotations

import argparse
import os
import shlex


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text) or ["ssh"]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}: {text}") from None


def add_ssh_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--ssh`, whose value is a list of words: the program and its own options."""
    parser.add_argument(
        "--ssh",
        type=_words,
        default=os.environ.get("PELTON_SSH", "ssh"),
        metavar="PROGRAM",
        help="the program, with options, in place of ssh (PELTON_SSH)",
    )
