"""`pelton status` and `pelton top`: what the ranks of this host's jobs are at, without touching them.

Each rank, or its pelton-daemon, answers at a socket of the job's folder, from a thread that does not train. What no
rank here knows is said to be unknown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton_run import daemons, job_folder, stacks

_ANSWER_S = 10.0
_CLEAR = "\x1b[H\x1b[2J"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Look:
    """What one rank, or its daemon, has said. Threads: a value. Owns: its fields."""

    rank: int
    said: dict[str, Any] | None  # pelton.proto.LinkStatus, by field
    problem: str = ""

    @property
    def trainer(self) -> int:
        """The pid of the rank's trainer; 0: there is none."""
        return int(self.said["trainer_pid"]) if self.said else 0

    @property
    def stands_s(self) -> float:
        """For how long the trainer has neither marked a bucket nor begun to wait, or has waited; 0: not known."""
        if not self.said:
            return 0.0
        return max((_stands_us(model) for model in self.said["models"]), default=0) / 1e6


def _stands_us(model: dict[str, Any]) -> int:
    if model["waits"]:
        return int(model["waits_for_us"])
    return int(model["moved_before_us"]) if model["has_moved"] else 0


def look_at(folder: Path) -> list[Look]:
    """Asks every rank that has a door in the folder. Blocks: until all have answered, ten seconds at most."""
    paths = {int(path.stem): path for path in folder.glob("*" + job_folder.DOOR) if path.stem.isdigit()}
    if not paths:
        return []
    with ThreadPoolExecutor(min(8, len(paths))) as pool:
        return list(pool.map(_ask, sorted(paths), [paths[rank] for rank in sorted(paths)]))


def _ask(rank: int, path: Path) -> Look:
    command = [daemons.program(), "--socket", str(path), "--status", "--json"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
        if asked.returncode == 0:
            return Look(rank, json.loads(asked.stdout))
        problem = asked.stderr.strip().rpartition("pelton-daemon: ")[2]
    except (subprocess.TimeoutExpired, ValueError) as error:
        problem = str(error)
    return Look(rank, None, problem or "it does not answer")


def lines_of(folder: Path, stuck_s: float) -> Iterator[str]:
    """One job, for people.

    Args:
      folder: of the job.
      stuck_s: a trainer that stands for so long is shown with its Python stacks.
    """
    looks = look_at(folder)
    known = next((look.said for look in looks if look.said), None)
    if known is None:
        yield f"job in {folder}: no rank answers" if looks else f"job in {folder}: no rank has joined yet"
        yield from (f"  rank {look.rank}: unknown, {look.problem}" for look in looks)
        return
    hosts = len(set(known["host_of"]))
    yield f"job '{known['job']}' in {folder}: {known['world_size']} ranks on {hosts} host{'s' * (hosts > 1)}"
    by_rank = {look.rank: look for look in looks}
    for rank in range(known["world_size"]):
        look = by_rank.get(rank)
        yield from _lines_of_rank(folder, look, stuck_s) if look else [_line_of_absent(known, rank)]


def _line_of_absent(known: dict[str, Any], rank: int) -> str:
    hosts, pids = known["host_of"], known["pid_of"]
    where = f"rank {hosts[rank]}'s host" if rank < len(hosts) else "an unknown host"
    is_here = rank < len(hosts) and hosts[rank] == hosts[known["rank"]]
    who = f"pid {pids[rank]} on {where}" if rank < len(pids) else where
    why = "it has no door in this folder" if is_here else "ask there"
    return f"  rank {rank}  {who}: unknown here, {why}"


def _lines_of_rank(folder: Path, look: Look, stuck_s: float) -> Iterator[str]:
    said = look.said
    if said is None:
        yield f"  rank {look.rank}: unknown, {look.problem}"
        return
    daemon = f"  daemon {said['daemon_pid']}" if int(said["daemon_pid"]) else ""
    trainer = f"pid {look.trainer}" if look.trainer else "no trainer"
    operations = f"  {said['operations']} operations in flight" if said["operations"] else ""
    yield f"  rank {look.rank}  {trainer}{daemon}  round {said['round']}{operations}"
    if said["failure"]:
        yield f"    failed: {said['failure']}"
    for absent in said["absent"]:
        yield f"    deadlines stand still: {absent}"
    for model in said["models"]:
        yield from _lines_of_model(model)
    if not said["models"]:
        yield "    no wrapped model" + (", or one whose rounds the trainer runs itself" if daemon else "")
    yield from map(_line_of_actor, said.get("actors", []))
    if look.trainer and look.stands_s >= stuck_s:
        yield from _lines_of_stuck(folder, look)


def _lines_of_model(model: dict[str, Any]) -> Iterator[str]:
    sent = f"sent {_bytes(int(model['sent_bytes']))}"
    if model["unknown"]:
        yield f"    model '{model['name']}': {sent}, its round is unknown, {model['unknown']}"
        return
    counts = f"{model['buckets']} buckets, {model['ready']} ready, {model['complete']} complete"
    yield f"    model '{model['name']}': round {model['round']}, {counts}, {sent}"
    if model["work"]:
        yield f"      under way for {_seconds(model['work_for_us'])}: {model['work']}"
    if model["missing"]:
        yield f"      waiting for rank {', '.join(map(str, model['missing']))}"
    if model["awaited"]:
        yield f"      next: {model['awaited']}"
    if model["waits"]:
        yield f"      the trainer waits for the round, since {_seconds(model['waits_for_us'])}"
    elif model["has_moved"]:
        yield f"      the last bucket was ready, or through, {_seconds(model['moved_before_us'])} ago"


def _line_of_actor(actor: dict[str, Any]) -> str:
    name = f"{actor['name']}, {actor['what']}" if actor["name"] else actor["what"]
    mailbox = f"mailbox {actor['mailbox_used']} of {actor['mailbox_capacity']}"
    turns = f"{actor['turns']} turns" + (", in one now" if actor["is_in_turn"] else "")
    return f"    {name}: {mailbox}, {turns}, the longest measured {int(actor['longest_turn_us']) / 1e3:.1f} ms"


def _lines_of_stuck(folder: Path, look: Look) -> Iterator[str]:
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - look.stands_s))
    yield f"    pid {look.trainer} stands since {since} ({look.stands_s:.1f} s)"
    try:
        text = stacks.ask(folder, look.trainer)
    except stacks.Unknown as reason:
        yield f"      its Python stack is unknown: {reason}"
        return
    yield from ("      " + line for line in text.splitlines() if line)


def _seconds(us: str) -> str:
    return f"{int(us) / 1e6:.1f} s"


def _bytes(count: float) -> str:
    unit = 0
    while count >= 1024 and unit + 1 < len(_UNITS):
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


def _folders(named: str | None) -> list[Path]:
    if named is not None:
        return [Path(named)]
    return [folder for folder in job_folder.folders() if any(folder.glob("*" + job_folder.DOOR))]


def _text(options: argparse.Namespace) -> tuple[str, bool]:
    """What is to be shown, and whether there was any job."""
    found = _folders(options.folder)
    lines = [line for folder in found for line in lines_of(folder, options.stuck)]
    return "\n".join(lines) or "no job of this user is running here that was started with a folder to look into", any(
        found
    )


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"pelton {name}", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", nargs="?", help="of one job (default: all jobs of this user on this host)")
    parser.add_argument(
        "--stuck", type=float, default=10.0, metavar="S", help="seconds after which Python stacks are shown (10)"
    )
    return parser


def status(arguments: Sequence[str]) -> int:
    """Prints every job once.

    Returns:
      1 if there is none.
    """
    text, has_some = _text(_parser("status").parse_args(arguments))
    print(text)
    return 0 if has_some else 1


def top(arguments: Sequence[str]) -> int:
    """Prints every job again and again, until Ctrl-C."""
    parser = _parser("top")
    parser.add_argument("-d", "--delay", type=float, default=1.0, metavar="S", help="seconds between looks (1)")
    parser.add_argument("-n", "--looks", type=int, default=0, metavar="N", help="end after N looks (0: never)")
    options = parser.parse_args(arguments)
    looks = 0
    try:
        while True:
            text, _ = _text(options)
            print((_CLEAR if sys.stdout.isatty() else "") + text, flush=True)
            looks += 1
            if looks == options.looks:
                return 0
            time.sleep(options.delay)
    except KeyboardInterrupt:
        return 0
