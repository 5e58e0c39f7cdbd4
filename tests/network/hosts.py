"""Network namespaces as hosts, joined by a bridge, with links whose rate `tc tbf` sets.

    with Hosts(2, rate="1gbit") as hosts:
        hosts.popen(0, ["program", hosts.interface, hosts.address(0)])
        hosts.cut(1)
        hosts.restore(1)

Names carry this process's id; what a killed process has left is removed when the next one starts.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from typing import Any

_NAME = re.compile(r"^(pelton(\d+)-\w+)")
BURST_BYTES = {"10gbit": "4mb", "1gbit": "1mb", "100mbit": "256kb"}


class NotPermitted(Exception):
    """This machine does not let us make namespaces; the text says what was refused."""


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotPermitted(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def remove_orphans() -> None:
    """Removes the namespaces of processes that are gone."""
    for line in _ip("netns", "list").splitlines():
        match = _NAME.match(line)
        if match and not os.path.exists(f"/proc/{match.group(2)}"):
            subprocess.run(["ip", "netns", "del", match.group(1)], check=False, capture_output=True)


class Hosts:
    """`count` namespaces, each with one interface on a common switch, which is a namespace too."""

    interface = "eth0"

    def __init__(self, count: int, rate: str | None = None) -> None:
        self.count, self.rate = count, rate
        self._prefix = f"pelton{os.getpid()}"
        self._switch = f"{self._prefix}-switch"

    def name(self, host: int) -> str:
        """The namespace of `host`."""
        return f"{self._prefix}-host{host}"

    def address(self, host: int) -> str:
        """The IPv4 address of `host`."""
        return f"10.77.0.{host + 1}"

    def __enter__(self) -> Hosts:
        remove_orphans()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Starts `command` on `host`."""
        return subprocess.Popen(["ip", "netns", "exec", self.name(host), *command], text=True, **options)

    def cut(self, host: int) -> None:
        """Takes the link of `host` down at the switch: its own end still looks alive."""
        _ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def restore(self, host: int) -> None:
        """Brings the link of `host` up again."""
        _ip("-n", self._switch, "link", "set", f"port{host}", "up")

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge0", "up")
        for host in range(self.count):
            self._add(host)

    def _add(self, host: int) -> None:
        name, port = self.name(host), f"port{host}"
        _ip("netns", "add", name)
        _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", self.interface, "netns", name)
        _ip("-n", self._switch, "link", "set", port, "master", "bridge0", "up")
        _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", self.interface)
        _ip("-n", name, "link", "set", self.interface, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        if self.rate is None:
            return
        for space, device in ((name, self.interface), (self._switch, port)):
            limit = ["rate", self.rate, "burst", BURST_BYTES.get(self.rate, "1mb"), "latency", "50ms"]
            command = ["tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", *limit]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode != 0:
                raise NotPermitted(f"{' '.join(command)}: {done.stderr.strip()}")

    def _remove(self) -> None:
        for name in [*(self.name(host) for host in range(self.count)), self._switch]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
