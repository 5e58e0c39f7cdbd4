"""Who waits outside the actors: the files with a thread, a mutex or a condition variable of their own, and why.

What has state and waits is an actor (docs/actors.md), so the list only becomes shorter: an entry whose file owns
nothing any more is a finding, and so is a file that the list does not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from tools.lint.source import Finding, Source

_TRANSPORT_LIST = "the communicators that are open; any thread opens, and the thread that learns of a loss aborts them"
_LAUNCH = "any thread launches, queries and aborts; becomes the state of the lane that drives the communicator"
_STAND_IN = "part of a library that stands in for NVIDIA's, which has threads and locks of its own"

# A header and its source count as one: the path without its ending.
OWNERS: dict[str, str] = {
    "backend/backend": "a transport opens for one thread at a time",
    "backend/link/link_client": "any thread calls the daemon; one thread, which waits in poll(2) for its notices",
    "backend/link/link_communicator": "any thread registers regions and aborts, beside the one that launches",
    "backend/link/link_server": "one thread for each connection, which waits in poll(2) for what a trainer says",
    "backend/link/linked_rounds": "any thread aborts; a thread waits for a round's future, on the page's futex word",
    "backend/link/link_socket": "the packets of one message follow each other, whichever threads send",
    "backend/link/link_transport": _TRANSPORT_LIST,
    "backend/link/rounds_server": "one thread waits in the trainer's place; one waits in poll(2) for its questions",
    "backend/link/served_communicator": "one thread drives, while another one waits in poll(2) for the trainer",
    "backend/link/trainer_regions": "one thread hears of regions, another one launches; the process maps each once",
    "backend/link/trainer_seat": "one thread, which waits at the coordinator; connections of several threads",
    "comm/collectives/scheduled_communicator": _LAUNCH,
    "comm/control/connection_door": "one thread, which waits in accept(2) and poll(2) for strangers",
    "comm/control/coordinator_shell": "gRPC calls from its own threads; one thread for the deadlines of parked calls",
    "comm/control/grpc_control": "calls of several threads, all of which the end cancels",
    "comm/control/heartbeat_client": "two threads, because a gRPC stream reads and writes by blocking calls",
    "comm/control/in_process_control": "ranks in threads of one process share a coordinator",
    "comm/control/order_inbox": "orders come from any thread and are delivered one at a time",
    "comm/hierarchy/hierarchical_communicator": _LAUNCH,
    "comm/hierarchy/hierarchical_transport": _TRANSPORT_LIST,
    "comm/lane/lane": "whoever waits drives the communicator; threads for jobs that nobody waits for",
    "comm/tiers": _LAUNCH,
    "comm/transport/fault/fault_transport": "communicators on any thread throw the same dice",
    "comm/transport/nccl/abort_thread": "one thread, because NCCL's abort blocks",
    "comm/transport/nccl/gpu_world": "ranks in threads, for tests",
    "comm/transport/nccl/native_communicator": "an abort frees the handle that a launch may be using",
    "comm/transport/nccl/nccl_communicator": _LAUNCH,
    "comm/transport/nccl/nccl_transport": _TRANSPORT_LIST,
    "comm/transport/nccl/stand_in/controls": _STAND_IN,
    "comm/transport/nccl/stand_in/process_arrival": _STAND_IN,
    "comm/transport/nccl/stand_in/streams": _STAND_IN,
    "comm/transport/nccl/stand_in/world": _STAND_IN,
    "comm/transport/network/control": "what peers say comes on whichever thread polls the worker",
    "comm/transport/network/network_communicator": _LAUNCH,
    "comm/transport/network/network_transport": _TRANSPORT_LIST,
    "comm/transport/shm/abort": "the reason of an abort, written once by any thread",
    "comm/transport/shm/links": "one thread, which waits in poll(2) for sockets of the peers on this host",
    "comm/transport/shm/mapping": "a table of the process: regions that are mapped already",
    "comm/transport/shm/remote_memory": "a table of the process: which processes may be read",
    "comm/transport/shm/shm_communicator": _LAUNCH,
    "comm/transport/shm/shm_transport": _TRANSPORT_LIST,
    "comm/transport/sim/sim_fabric": "ranks in threads of one process share a network",
    "comm/transport/sim/sim_group": "a rank in a thread waits for the others, where no simulation runs",
    "comm/transport/sim/sim_registration": "a table of the process: worlds by name",
    "core/memory/cuda/cuda_queue": "the trainer marks buckets while the lane allocates",
    "core/memory/region": "a table of the process: regions by number and by address",
    "core/memory/region_pool": "an allocator: any thread of the program allocates",
    "core/registry/registry": "a table of the process: factories by name",
    "torch_bindings/csrc/averaging_control": "a Python program locks its weights on one thread and unlocks on another",
    "torch_bindings/csrc/c10d/monitored_barrier": "who waits in a barrier, asked and told by several threads",
    "torch_bindings/csrc/log_lines": "one thread, because writing a line takes the GIL",
    "torch_bindings/csrc/python_communicator": "a table of lanes by device: calls of several threads",
}
# The number that it had when it was first written, 42, and the ten of the link to a daemon, whose sockets and
# coordinator are waited for by blocking calls: to be lowered, never raised.
MOST_OWNERS = 52

_EXEMPT = ("core/actor/", "core/base/", "examples/")
_THREAD = r"std::j?thread|std::vector<std::j?thread>"
_LOCK = r"Mutex|CondVar|(?:std::)?(?:counting_semaphore|binary_semaphore|latch|barrier)(?:<[^>]*>)?"
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
