"""Which files treat one kind of collective differently from another, and why.

A new kind is a row of a table (core/pipeline/operation_kind.h), a recipe (comm/collectives/recipes/) and a function
that users call (comm/collectives.h): three product files. It stays so as long as everything else asks the row. What may
name kinds to decide by them is on the list: what runs some kinds natively and leaves the others to programs, so that a
new kind needs no edit there. The list only becomes shorter, and an entry that decides nothing any more is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from tools.lint.source import Finding, Source

# A header and its source count as one: the path without its ending.
NATIVE: dict[str, str] = {
    "backend/link/link_communicator": "large allreduces go to the daemon in pieces",
    "comm/hierarchy/stages": "the kinds that have stages; all others run by a flat recipe",
    "comm/transport/nccl/operation_map": "the kinds that NCCL runs; it refuses all others by name",
    "comm/transport/nccl/flight_queue": "NCCL's call for each of them",
    "comm/transport/shm/collective": "staging, segments and eager results of the kinds that there is a plan for",
    "comm/transport/shm/task_list": "the kinds that there is a plan for; all others are programs",
    "comm/transport/shm/shm_communicator": "allreduces are launched in pieces",
    "comm/transport/sim/outcome": "the kinds that the fabric knows; all others are programs",
}
# To be lowered; raised for a transport that is new and runs some kinds natively.
MOST_NATIVE = 8

# Recipes are what a new kind brings; the others are linked by tests only.
_EXEMPT = ("comm/collectives/recipes/", "comm/transport/nccl/stand_in/", "core/pipeline/fake_world.")
# No collectives: a message has two ends, and an operation between neighbours takes a mean or concatenates.
_KIND = r"OperationKind::k(?!Send\b|Recv\b|NeighborAll)\w+"
_ANY = r"OperationKind::k\w+"
# Naming a kind to launch it decides nothing. The number of any kind is a bound, which a new kind moves.
_DECIDES = re.compile(
    rf"\bcase\s+(?:\w+::)*{_KIND}\s*:"
    rf"|[=!]=\s*(?:\w+::)*{_KIND}"
    rf"|{_KIND}\s*[=!]="
    rf"|[<>]=?\s*(?:\w+::)*{_ANY}"
    rf"|{_ANY}\s*[<>]"
    rf"|\bstatic_cast<\w+>\(\s*(?:\w+::)*{_ANY}"
    rf"|\bContains\(\s*(?:\w+::)*{_KIND}"
    rf"|\bKindSet\b[^;{{]*\{{\s*(?:\w+::)*{_KIND}"
)


def check(sources: Sequence[Source]) -> Iterator[Finding]:
    """Every file that decides by kind is on the list, and every entry of the list does."""
    if len(NATIVE) > MOST_NATIVE:
        yield Finding("tools/lint/kinds.py", 1, f"{len(NATIVE)} files decide by kind, {MOST_NATIVE} at most")
    idle = dict.fromkeys(NATIVE)
    for source in sources:
        if not source.is_cpp or source.is_test or source.path.startswith(_EXEMPT):
            continue
        owner = str(PurePosixPath(source.path).with_suffix(""))
        text = "\n".join(source.code)
        for match in _DECIDES.finditer(text):
            idle.pop(owner, None)
            if owner not in NATIVE:
                yield source.at(
                    text.count("\n", 0, match.end()) + 1,
                    "decides by the kind of a collective, which a new kind would edit: ask its row (TraitsOf)",
                )
    for owner in idle:
        yield Finding("tools/lint/kinds.py", 1, f"{owner} does not decide by kind any more: take it off the list")
