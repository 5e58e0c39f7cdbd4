"""Who waits outside the actors: the files with a thread, a mutex or a condition variable of their own, and why.

What has state and waits is an actor (docs/actors.md), so the list only becomes shorter: an entry whose file owns
nothing any more is a finding, and so is a file that the list does not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from tools.lint.source import Finding, Source

# A header and its source count as one: the path without its ending.
OWNERS: dict[str, str] = {
    "backend/link/link_server": "one thread for each connection, which blocks while it serves what a trainer asks",
    "backend/link/trainer_seat": "one thread, which waits at the coordinator; connections of several threads",
    "comm/lane/lane": "whoever waits drives the communicator; threads for jobs that nobody waits for",
    "comm/transport/nccl/native_communicator": "an abort frees the handle that a launch may be using",
    "comm/transport/network/worker": "communicators share a wire, and each is driven by a thread of its own",
    "comm/transport/shm/links": "what peers share: any thread looks for it, and one watches their sockets",
    "comm/transport/shm/remote_memory": "a table of the process: which processes may read it, as the kernel is told",
    "comm/window/window_memory": "a user's lock on a window, in memory that processes share",
    "core/memory/region": "a table of the process: regions by number and by address",
    "core/memory/region_pool": "an allocator: any thread of the program allocates",
}
# To be lowered, never raised. What several files need is a type of core/base instead: those of sharing.h (a reason
# that stays, entries that are visited or taken, things made once for all who ask, values by key), sync.h (Turn: one
# caller at a time, until a deadline), inbox.h (delivered one at a time), threads.h (calls that block, waits for
# descriptors).
MOST_OWNERS = 10

# The last four are in no process that trains (tests/python/test_packaging.py): a library that stands in for NVIDIA's,
# and what simulates a job whose ranks are threads of one process.
_EXEMPT = (
    "core/actor/",
    "core/base/",
    "examples/",
    "comm/transport/nccl/stand_in/",
    "comm/transport/nccl/gpu_world.",
    "comm/transport/sim/",
    "comm/control/in_process_control.",
)
_THREAD = r"std::j?thread|std::vector<std::j?thread>"
_LOCK = r"Mutex|CondVar|pthread_mutex_t|(?:std::)?(?:counting_semaphore|binary_semaphore|latch|barrier)(?:<[^>]*>)?"
# A declaration of an object; a reference, a pointer or a lock that is taken owns nothing.
_OWNS = re.compile(rf"(?<![\w:.<])(?:{_THREAD}|{_LOCK})\s+[a-z]\w*\s*(?:ABSL_\w+\([^)]*\)\s*)*[;{{(=]")


def check(sources: Sequence[Source]) -> Iterator[Finding]:
    """Every owner is on the list, and every entry of the list owns something."""
    if len(OWNERS) > MOST_OWNERS:
        yield Finding("tools/lint/threads.py", 1, f"{len(OWNERS)} owners of threads and locks, {MOST_OWNERS} at most")
    idle = dict.fromkeys(OWNERS)
    for source in sources:
        owner = str(PurePosixPath(source.path).with_suffix(""))
        if not source.is_cpp or source.is_test or source.path.startswith(_EXEMPT):
            continue
        for number, line in enumerate(source.code, 1):
            if not _OWNS.search(line):
                continue
            idle.pop(owner, None)
            if owner not in OWNERS:
                yield source.at(
                    number, "a thread or a lock outside core/actor: make it an actor's state (docs/actors.md)"
                )
    for owner in idle:
        yield Finding("tools/lint/threads.py", 1, f"{owner} owns no thread and no lock any more: take it off the list")
