"""Where things lie, and how a lane runs a command."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "out" / "test"
PYTHON = str(ROOT / ".venv" / "bin" / "python")


def home() -> Path:
    """The user's home, also where HOME is not set."""
    return Path(os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)


def cache() -> Path:
    """Pelton's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache") / "pelton"


def output_base(lane: str) -> Path:
    """Bazel's output folder for one lane of this checkout; lanes that shared one would evict each other's files."""
    checkout = hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]
    return cache() / "output" / checkout / lane


@dataclass(frozen=True)
class Settings:
    """What the command line asked for.

    Attributes:
      long: run what takes hours.
      turn: whose turn it is among the slow tests; None: everybody's.
    """

    long: bool = False
    turn: int | None = None

    def test_environment(self) -> dict[str, str]:
        """Variables that the tests read: the number of seeds of each simulated test, that of the processes which a
        soak kills, and what takes long.
        """
        return {"PELTON_LONG": "1", "PELTON_SEEDS": "20000", "PELTON_SOAK_KILLS": "100"} if self.long else {}


def run(command: Sequence[str], log: Path, *, timeout_s: float, settings: Settings, cwd: Path = ROOT) -> int:
    """Runs `command` with its output appended to `log`; returns its exit status, 124 if it ran past `timeout_s`.

    The command gets a process group of its own, which ends with it: a test that leaves a process behind must not
    hold the next lane up.
    """
    environment = {**os.environ, "HOME": str(home()), **settings.test_environment()}
    with log.open("ab") as file:
        file.write(f"$ {' '.join(command)}\n".encode())
        file.flush()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            file.write(f"ran past {timeout_s:.0f} s\n".encode())
            return 124
        finally:
            _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of the process's group. Bazel's server has a session of its own and stays."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
