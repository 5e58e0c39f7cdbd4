"""Network namespaces as hosts, joined by a bridge, with links whose rate `tc tbf` sets; or by a forwarder that delays.

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
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DELAY = Path(__file__).with_name("delay.py")
_NAME = re.compile(r"^(pelton(\d+)-\w+)")
_MOST_SECONDS_DOWN = 10
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

    def __init__(self, count: int, rate: str | None = None, delay_s: float = 0) -> None:
        """Args:
        count: number of hosts.
        rate: of each link and direction, as tc writes it; None: as fast as the machine.
        delay_s: from one host to another. Units: seconds.
        """
        self.count, self.rate, self.delay_s = count, rate, delay_s
        self._forwarder: subprocess.Popen[str] | None = None
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
        if self.delay_s == 0:
            _ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "bridge0", "up")
        for host in range(self.count):
            self._add(host)
        for host in range(self.count):
            self._await_up(host)
        if self.delay_s > 0:
            self._forward()

    def _await_up(self, host: int) -> None:
        """The kernel calls an interface usable up to a second after it has a carrier."""
        deadline = time.monotonic() + _MOST_SECONDS_DOWN
        while "state UP" not in (shown := _ip("-n", self.name(host), "link", "show", self.interface)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.interface} of host {host} stays down: {shown}")
            time.sleep(0.01)

    def _forward(self) -> None:
        ports = [f"port{host}" for host in range(self.count)]
        command = ["ip", "netns", "exec", self._switch, sys.executable, str(_DELAY), str(self.delay_s), *ports]
        pipe = subprocess.PIPE
        self._forwarder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self._forwarder.stdout is not None
        if self._forwarder.stdout.readline() != "ready\n":
            said = self._forwarder.communicate(timeout=10)[1]
            raise (NotPermitted if "PermissionError" in said else RuntimeError)(f"forwarding with a delay: {said}")

    def _add(self, host: int) -> None:
        name, port = self.name(host), f"port{host}"
        _ip("netns", "add", name)
        _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", self.interface, "netns", name)
        if self.delay_s == 0:
            _ip("-n", self._switch, "link", "set", port, "master", "bridge0")
        _ip("-n", self._switch, "link", "set", port, "up")
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
        if self._forwarder is not None:
            self._forwarder.kill()
            self._forwarder.communicate()
        for name in [*(self.name(host) for host in range(self.count)), self._switch]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
