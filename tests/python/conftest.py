"""Finds out, before anything runs, which cases one job per world size has to run; and hosts for tests of several."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from spawn import want_cases

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.network.hosts import Hosts, NotPermitted
from tools.testing import turns

# As ssh and its server do: the command gets a session, a shell and hardly any variable. The client's end ends nothing
# but the command's input. What stood on the client's command line is kept beside the program.
_SSH = """#!/bin/sh
printf '%s\\n' "$@" > "$0.$$"
while :; do case $1 in -o|-p) shift 2;; -*) shift;; *) break;; esac; done
[ "$1" != gone.invalid ] || { echo "ssh: no route to $1" >&2; exit 255; }
host=$1
shift
exec 3<&0
env -i PATH=/usr/bin:/bin setsid /bin/sh -c "$*" <&3 3<&- &
exec 3<&-
wait $!
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the slow files that are not in their turn; tools/test names them."""
    left_out = turns.left_out()
    config.hook.pytest_deselected(items=[item for item in items if item.path.stem in left_out])
    items[:] = [item for item in items if item.path.stem not in left_out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Every selected test of a case module says so by its parameters."""
    for item in session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "world_size" in parameters:
            module = parameters.get("module", getattr(item.module, "MODULE", None))  # type: ignore[attr-defined]
            assert module is not None, f"{item.nodeid} has a world_size, and names no module of cases"
            want_cases(parameters["world_size"], module)


@pytest.fixture
def ssh(tmp_path: Path) -> Path:
    """A program that stands in for ssh on this machine."""
    program = tmp_path / "bin" / "ssh with spaces"
    program.parent.mkdir()
    program.write_text(_SSH)
    program.chmod(0o755)
    return program


@pytest.fixture
def ssh_between_hosts(ssh: Path, hosts: Hosts) -> Path:
    """One that enters the network namespace of the address that it is given."""
    names = " ".join(f"{hosts.address(host)}) name={hosts.name(host)};;" for host in range(hosts.count))
    enter = f"case $host in {names} esac\nip netns exec $name env -i"
    ssh.write_text(ssh.read_text().replace("env -i", enter))
    return ssh


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Two hosts that are network namespaces, the parameter's seconds apart if there is one, or a skip that says why
    there are none.
    """
    try:
        made = Hosts(2, delay_s=getattr(request, "param", 0)).__enter__()
    except (NotPermitted, FileNotFoundError) as reason:
        pytest.skip(f"network namespaces are not permitted here: {reason}")
    yield made
    made.__exit__()
