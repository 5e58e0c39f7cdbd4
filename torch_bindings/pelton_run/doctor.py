"""`pelton doctor`: looks at what a job on this machine depends on, and says what to do about each weakness.

Nothing is changed, and no job is started. Nothing leaves the machine but the question for the clocks of hosts that are
named. Torch is imported for its own lines only, so that a broken installation is a line, too.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import os
import platform
import resource
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pelton_run.ssh import add_ssh_option

GIB = 1 << 30
ENOUGH_DESCRIPTORS = 4096
_TIME_ERROR = 5  # adjtimex: the clock is not synchronised
# Beyond it, what two hosts do at the same time stands apart in a trace.
_MOST_SKEW_S = 0.005
_QUESTIONS, _LONGEST_S = 9, 20.0
_PTRACE = Path("/proc/sys/kernel/yama/ptrace_scope")
_RDMA = Path("/sys/class/infiniband")
# What Pelton does with NCCL, by the function that it takes and the version that brought it.
_NCCL_CAN = (
    ("ncclCommInitRankConfig", "2.14", "communicators that a deadline ends"),
    ("ncclCommRegister", "2.19", "buckets that are registered once"),
)
_AVERAGES_SINCE = (2, 10)


@dataclass(frozen=True)
class Finding:
    """One line. Threads: a value. Owns: its texts."""

    level: str  # "ok", "note" or "wrong"
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:6} {self.what}" + (f"\n       -> {self.remedy}" if self.remedy else "")


def _ok(what: str) -> Finding:
    return Finding("ok", what)


def versions() -> Iterator[Finding]:
    """Pelton, Python, torch, and whether the extension loads."""
    try:
        yield _ok(f"pelton {importlib.metadata.version('pelton')}, Python {platform.python_version()}")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("note", "pelton is not installed, it runs from a folder", "pip install . in its checkout")
    try:
        import pelton
        import torch
    except ImportError as error:
        yield Finding("wrong", f"pelton cannot be imported: {error}", "mend what the line above names")
        return
    yield _ok(f"torch {torch.__version__}; the extension loads ({Path(pelton.__file__).parent})")


def cores() -> Iterator[Finding]:
    """What this process may run on, and what a control group leaves of it."""
    allowed, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    yield _ok(f"{allowed} of {present} cores may be used")
    quota = _cpu_quota()
    if quota is not None and quota < allowed:
        yield Finding("note", f"the control group allows {quota:g} cores", "run no more ranks than that, or raise it")
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    if nodes > 1:
        yield Finding("note", f"{nodes} NUMA nodes", "start each rank on one of them: numactl --cpunodebind --membind")


def _cpu_quota() -> float | None:
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)


def memory() -> Iterator[Finding]:
    """What is free, what a control group allows, and whether buckets can be made."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    yield _ok(f"{free / GIB:.1f} GiB of memory available")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        limit, used = "max", 0
    if limit != "max":
        left = int(limit) - used
        remedy = "buckets and gradients need about twice the model's size a rank" if left < GIB else ""
        yield Finding("note", f"the control group leaves {left / GIB:.1f} GiB", remedy)
    try:
        os.close(os.memfd_create("pelton-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        yield _ok("memory can be shared between processes (memfd)")
    except OSError as error:
        yield Finding("wrong", f"memfd_create: {error}", "allow memfd_create in the container's seccomp profile")


def descriptors() -> Iterator[Finding]:
    """How many sockets a rank may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < ENOUGH_DESCRIPTORS:
        yield Finding("note", f"{soft} open files, at most {hard}", "ulimit -Hn 65536 for jobs of many ranks")
    else:
        yield _ok(f"{soft} open files, at most {'any' if hard == resource.RLIM_INFINITY else hard}")


def peers_memory() -> Iterator[Finding]:
    """Whether a rank may read another's memory: without it private tensors are copied once more."""
    scope = _PTRACE.read_text().strip() if _PTRACE.exists() else "0"
    if _child_reads_my_memory():
        yield _ok("ranks can read each other's memory (process_vm_readv)")
        return
    yield Finding(
        "note",
        f"ranks cannot read each other's memory (Yama's ptrace_scope is {scope}): private tensors are copied once more",
        "docker run --cap-add SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=1; or take tensors from pelton.empty",
    )


_READS = """
import ctypes, sys
class IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
mine = ctypes.create_string_buffer(8)
here, there = IoVec(ctypes.addressof(mine), 8), IoVec(int(sys.argv[2]), 8)
libc = ctypes.CDLL(None, use_errno=True)
count = libc.process_vm_readv(int(sys.argv[1]), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
sys.exit(0 if count == 8 and mine.raw == b"peltonic" else 1)
"""


def _child_reads_my_memory() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    pr_set_ptracer, any_process, nobody = 0x59616D61, ctypes.c_ulong(-1), ctypes.c_ulong(0)
    words = ctypes.create_string_buffer(b"peltonic", 8)
    libc.prctl(pr_set_ptracer, any_process, 0, 0, 0)  # as ranks do
    try:
        command = [sys.executable, "-c", _READS, str(os.getpid()), str(ctypes.addressof(words))]
        return subprocess.run(command, check=False, stderr=subprocess.DEVNULL, timeout=60).returncode == 0
    finally:
        libc.prctl(pr_set_ptracer, nobody, 0, 0, 0)


def network() -> Iterator[Finding]:
    """What other hosts will be told, and whether this host's name leads to it."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        yield Finding(
            "note", f"this host's name {name} has no address", "give MASTER_ADDR as an address, not as a name"
        )
    else:
        if address.startswith("127."):
            remedy = (
                "for jobs of several hosts give MASTER_ADDR as an address, and PELTON_INTERFACE if there are several"
            )
            yield Finding("note", f"this host's name {name} is the loopback address {address}", remedy)
        else:
            yield _ok(f"this host is {name}, {address}")
    names = ", ".join(name for _, name in socket.if_nameindex())
    yield _ok(f"interfaces: {names}")
    if "PELTON_INTERFACE" in os.environ and os.environ["PELTON_INTERFACE"] not in names.split(", "):
        yield Finding("wrong", f"PELTON_INTERFACE={os.environ['PELTON_INTERFACE']} is none of them", "name one of them")
    spaces = " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid", "mnt"))
    yield _ok(f"namespaces: {spaces} (ranks share memory where the first is the same)")


def wires() -> Iterator[Finding]:
    """Libraries that are looked up when they are asked for."""
    environment = {**os.environ, "UCX_MEM_EVENTS": "n"}  # else it patches memory calls, in that process
    library = os.environ.get("PELTON_UCX_LIBRARY", "libucp.so.0")
    command = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({library!r})"]
    found = subprocess.run(command, check=False, env=environment, stderr=subprocess.DEVNULL).returncode == 0
    if found:
        yield _ok(f"UCX: {library} loads (PELTON_WIRE=ucx)")
    else:
        yield Finding("note", "no UCX: the wire between hosts is TCP", "for RDMA: apt-get install libucx0")
    yield from _network_devices(has_ucx=found)


def _network_devices(has_ucx: bool) -> Iterator[Finding]:
    """What UCX can use beside TCP: the RDMA devices that the kernel names, with the state of their ports."""
    ports = sorted(_RDMA.glob("*/ports/*"))
    if has_ucx and not ports:
        yield _ok("UCX devices: no RDMA device, it goes over TCP")
    for port in ports:
        state, rate = ((port / name).read_text().strip() for name in ("state", "rate"))
        name = f"RDMA device {port.parent.parent.name}, port {port.name}: {state}, {rate}"
        if "ACTIVE" not in state:
            yield Finding("note", name, "bring the port up, or name another device in UCX_NET_DEVICES")
        elif not has_ucx:
            yield Finding("note", f"{name}, which nobody uses without UCX", "apt-get install libucx0")
        else:
            yield _ok(f"{name} (PELTON_UCX_TLS=rc,self has UCX use it)")


def gpus() -> Iterator[Finding]:
    """What torch sees, and whether NCCL is there for it."""
    try:
        import torch
    except ImportError:
        return  # said above
    count = torch.cuda.device_count()
    if count == 0:
        yield _ok("no GPU: tensors are the CPU's")
        return
    names = ", ".join(sorted({torch.cuda.get_device_name(index) for index in range(count)}))
    yield _ok(f"{count} GPU(s): {names}")
    try:
        number: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        yield _ok(f"NCCL {'.'.join(map(str, number))} (PELTON_NCCL_LIBRARY names another one)")
        yield from nccl_can(number, _nccl_functions())
    except (AttributeError, RuntimeError) as error:
        yield Finding("wrong", f"no NCCL: {error}", "install a torch with NCCL, or set PELTON_NCCL_LIBRARY")
    yield mps(Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")))


def _nccl_functions() -> Callable[[str], bool]:
    """Whether the NCCL that is in force has a function: that of the variable, else the one torch has brought."""
    library = ctypes.CDLL(os.environ.get("PELTON_NCCL_LIBRARY"))  # None: this process
    return lambda name: hasattr(library, name)


def nccl_can(version: tuple[int, ...], has: Callable[[str], bool]) -> Iterator[Finding]:
    """What Pelton can do with this NCCL.

    Args:
      version: its numbers.
      has: whether it has a function of this name.
    """
    can = [what for name, _, what in _NCCL_CAN if has(name)]
    if version >= _AVERAGES_SINCE:
        can.append("means without a kernel of their own")
    yield _ok(f"NCCL can: {', '.join(can) or 'nothing beyond its first functions'}")
    for name, since, what in _NCCL_CAN:
        if not has(name):
            yield Finding("note", f"NCCL cannot: {what} ({name} came with {since})", f"NCCL {since} or later")


def mps(pipes: Path) -> Finding:
    """Whether processes that share a GPU can work on it at once.

    Args:
      pipes: the folder in which the control daemon of MPS listens.
    """
    if (pipes / "control").exists():
        return _ok(f"MPS listens in {pipes}: several processes work on one GPU at once")
    return Finding(
        "note",
        "no MPS: processes that share a GPU take turns on it",
        "one rank for each GPU needs none; else nvidia-cuda-mps-control -d",
    )


def clock() -> Iterator[Finding]:
    """Whether the wall clock is kept: traces of several hosts are laid side by side by it."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(512))  # larger than struct timex, all zero: a question only
    if state == _TIME_ERROR or state < 0:
        remedy = "chrony or systemd-timesyncd; deadlines do not depend on it, times in logs do"
        yield Finding("note", "the kernel does not call this clock synchronised", remedy)
    else:
        yield _ok("the clock is synchronised")


def clocks_of(hosts: Sequence[str], ssh: Sequence[str]) -> Iterator[Finding]:
    """How far the wall clocks of other hosts are from this one's.

    Args:
      hosts: as ssh takes them.
      ssh: the program with its arguments, in the place of `ssh`.
    """
    for host in hosts:
        try:
            ahead_s, doubt_s = _ahead(host, ssh)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            why = str(error).strip() or type(error).__name__
            remedy = f"try: {shlex.join([*ssh, host, 'date'])}"
            yield Finding("note", f"the clock of {host} was not read: {why}", remedy)
            continue
        what = f"the clock of {host} is {ahead_s * 1e3:+.1f} ms from this one's, give or take {doubt_s * 1e3:.1f} ms"
        if abs(ahead_s) - doubt_s > _MOST_SKEW_S:
            remedy = "chrony or systemd-timesyncd on both; deadlines do not depend on it, traces of several hosts do"
            yield Finding("note", what, remedy)
        else:
            yield _ok(what)


def _ahead(host: str, ssh: Sequence[str]) -> tuple[float, float]:
    """By how much a host's clock is ahead, and how much of that the way there and back may be.

    Over one connection, because making one takes longer than clocks differ; of some questions the one that was
    answered soonest counts.
    Source: Cristian, "Probabilistic clock synchronization", 1989.
    """
    command = [*ssh, host, "while read line; do date +%s.%N; done"]
    found: list[tuple[float, float]] = []
    pipe = subprocess.PIPE
    # Without buffers, because what one still holds of a program that has ended is an error when it is closed.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as there:
        assert there.stdin is not None and there.stdout is not None and there.stderr is not None
        watch = threading.Timer(_LONGEST_S, there.kill)
        watch.start()
        try:
            for _ in range(_QUESTIONS):
                began = time.time()
                with contextlib.suppress(BrokenPipeError):  # what it has said before it ended tells more
                    there.stdin.write(b"\n")
                answer = there.stdout.readline()
                ended = time.time()
                if not answer:
                    raise ValueError(there.stderr.read().decode(errors="replace") or f"no answer in {_LONGEST_S:g} s")
                found.append(((ended - began) / 2, float(answer) - (began + ended) / 2))
        finally:
            watch.cancel()
            there.kill()
    doubt_s, ahead_s = min(found)
    return ahead_s, doubt_s


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    versions,
    cores,
    memory,
    descriptors,
    peers_memory,
    network,
    wires,
    gpus,
    clock,
)


def main(arguments: Sequence[str]) -> int:
    """Prints every finding.

    Args:
      arguments: of the command line, behind `doctor`.

    Returns:
      1 if something is wrong, so that a job could not run; else 0.
    """
    parser = argparse.ArgumentParser("pelton doctor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--host_list", default="", metavar="H1,H2", help="hosts whose clocks are compared, by ssh")
    add_ssh_option(parser)
    options = parser.parse_args(arguments)
    hosts = [host for host in options.host_list.split(",") if host]
    findings = [finding for check in CHECKS for finding in check()]
    findings += clocks_of(hosts, options.ssh)
    for finding in findings:
        print(finding)
    return 1 if any(finding.level == "wrong" for finding in findings) else 0
