"""The command line of pelton.compat."""

from __future__ import annotations

import os
import runpy
import sys

from pelton.compat.aliases import COUNTERPARTS, PACKAGES, refusal

_USAGE = """usage: python -m pelton.compat script.py [arguments]
       python -m pelton.compat -m package.module [arguments]
       python -m pelton.compat --path

Runs a script that imports bagua or bluefog on Pelton. --path prints the folder that makes both importable, to be put
on PYTHONPATH."""


_SAFE_PATH = bool(getattr(sys.flags, "safe_path", False))  # Python 3.10 has no -P


def main(words: list[str]) -> int:
    """Runs the command line `words`; returns the exit code where a script does not set its own."""
    if not words or words[0] in ("-h", "--help") or words == ["-m"]:
        print(_USAGE, file=sys.stderr if not words or words == ["-m"] else sys.stdout)
        return 0 if words[:1] in (["-h"], ["--help"]) else 2
    if words[0].startswith("-") and words[0] not in ("-m", "--path"):
        print(f"pelton.compat: unknown option {words[0]}\n{_USAGE}", file=sys.stderr)
        return 2
    if words[0] != "-m" and not _SAFE_PATH:
        # `python -m` has put the current folder first, where `python script.py` has the script's.
        sys.path[:1] = [os.path.dirname(os.path.abspath(words[0]))] if words[0] != "--path" else []
    reasons = [reason for reason in map(refusal, COUNTERPARTS) if reason is not None]
    if reasons:
        print("\n".join(f"pelton.compat: {reason}" for reason in reasons), file=sys.stderr)
        return 1
    if words[0] == "--path":
        print(PACKAGES)
        return 0
    _extend_paths()
    return _run(words)


def _extend_paths() -> None:
    """For this process and for its children."""
    sys.path.insert(0 if _SAFE_PATH else 1, str(PACKAGES))
    outer = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PACKAGES), *([outer] if outer else [])])


def _run(words: list[str]) -> int:
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return 0
    if not os.path.exists(words[0]):
        print(f"pelton.compat: there is no {words[0]}", file=sys.stderr)
        return 2
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
