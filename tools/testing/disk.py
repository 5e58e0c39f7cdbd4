"""Room on the disk: a run of every lane writes about 20 GB, and what earlier runs have left must not be in its way."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

GB = 1e9
# One run of all lanes writes 8 GB of objects and programs into the cache that all checkouts share. When a file was read
# last is known to a day only (relatime), so that the last day's work has to fit.
KEPT_BYTES = 24 * GB
KEPT_IF_FULL_BYTES = 8 * GB
NEEDED_BYTES = 18 * GB


def make_room(cache: Path) -> None:
    """Removes what nobody needs from Pelton's cache, the oldest first, and says so if the disk is still too full."""
    for base in orphans(cache / "output"):
        remove_tree(base)
    trim(cache / "bazel" / "cas", KEPT_BYTES)
    if shutil.disk_usage(cache).free < NEEDED_BYTES:
        trim(cache / "bazel" / "cas", KEPT_IF_FULL_BYTES)
    free = shutil.disk_usage(cache).free
    if free < NEEDED_BYTES:
        print(
            f"== {cache} has {free / GB:.0f} GB of room; all lanes together may need {NEEDED_BYTES / GB:.0f} GB",
            flush=True,
        )


def orphans(outputs: Path) -> Iterator[Path]:
    """Bazel's output folders of checkouts that are gone."""
    for readme in list(outputs.glob("*/*/README")):
        try:
            checkout = re.search(r"^WORKSPACE: (.*)$", readme.read_text(errors="replace"), re.MULTILINE)
            is_gone = checkout is not None and not Path(checkout[1]).is_dir()
        except OSError:  # another run has removed it, or the checkout is not ours to look at
            continue
        if is_gone:
            yield readme.parent


def trim(folder: Path, kept_bytes: float) -> None:
    """Removes the files of Bazel's disk cache that were read last the longest ago, until `kept_bytes` are left. A
    removed file is made again when it is needed.
    """
    found = [(max(stat.st_atime, stat.st_mtime), stat.st_size, path) for path, stat in files(folder)]
    left = 0
    for _, size, path in sorted(found, reverse=True):
        left += size
        if left > kept_bytes:
            path.unlink(missing_ok=True)


def files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All files below `folder` that can be asked."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            try:
                yield path, path.stat()
            except FileNotFoundError:
                continue  # another run removed it


def remove_tree(base: Path) -> None:
    """Removes an output folder; Bazel takes the right to write from what it has made."""
    subprocess.run(["chmod", "-R", "u+w", str(base)], check=False, capture_output=True)
    shutil.rmtree(base, ignore_errors=True)
