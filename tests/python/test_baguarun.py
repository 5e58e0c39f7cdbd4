"""`pelton baguarun`: ranks on several hosts, behind a program that stands in for ssh on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pelton.compat.aliases import PACKAGES
from pelton.script.baguarun import parse_args
from pelton.torch_api.env import find_free_network_port
from pelton_run.baguarun import Host, parsed
from pelton_run.processes import processes_of
from spawn import Outcome, environment, run

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.network.hosts import Hosts

_MEET = """
import os, sys
import torch
import pelton.torch_api as bagua
bagua.init_process_group()
total = torch.tensor([bagua.get_rank() + 1.0])
bagua.allreduce_inplace(total, op=bagua.ReduceOp.SUM)
print("total", total.item(), os.environ["NODE_RANK"], os.environ["SECRET"], os.getcwd(), sys.argv[1:])
"""
_SHOW = 'echo $RANK $NODE_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT "$A" ${UNSENT-none}; printf \'<%s>\' "$@"'
_TWO = "--host_list=127.0.0.1,localhost:2222"

Command = Callable[..., list[str]]


@pytest.fixture
def command(ssh: Path) -> Command:
    """The command line of a job on two hosts, one rank each."""

    def make(*words: object) -> list[str]:
        begin = [sys.executable, "-m", "pelton_run.baguarun", "--ssh", f"'{ssh}' -q", "-x", "PYTHONPATH"]
        return [*begin, "--nproc_per_node=1", *map(str, words)]

    return make


def _lines_of(ssh: Path) -> list[list[str]]:
    """What stood on the command line of each ssh."""
    return sorted(path.read_text().splitlines() for path in ssh.parent.glob("ssh with spaces.*"))


def _lines(outcome: Outcome) -> list[str]:
    assert outcome.code == 0, outcome.errors
    return sorted(outcome.output.splitlines())


def test_every_host_runs_its_ranks(command: Command, ssh: Path) -> None:
    changes = {"A": 'it\'s "$HOME" `x`\nend', "UNSENT": "1", "BAGUA_SSH_PORT": "2200"}
    words = [_TWO, "-x", "A", "--master_port=1234", "--no_python", "sh", "-c", _SHOW, "-", "b c", "$d;'"]
    lines = _lines(run(command(*words), 60, changes))
    assert [line for line in lines if " 1234 " in line] == [
        f'[rank {rank}] {rank} {rank} 2 127.0.0.1 1234 it\'s "$HOME" `x`' for rank in range(2)
    ]
    assert [line for line in lines if "end none" in line] == ["[rank 0] end none", "[rank 1] end none"]
    assert [line for line in lines if "<" in line] == ["[rank 0] <b c><$d;'>", "[rank 1] <b c><$d;'>"]
    found = _lines_of(ssh)
    assert [line[:-1] for line in found] == [
        ["-q", "-T", "-o", "BatchMode=yes", "-p", "2200", "127.0.0.1"],
        ["-q", "-T", "-o", "BatchMode=yes", "-p", "2222", "localhost"],
    ]
    assert found[0][-1] == found[1][-1]  # the same for every job: nothing of a variable or an argument is in it
    assert "it's" not in found[0][-1]


def test_ranks_of_two_hosts_meet(ssh: Path, tmp_path: Path) -> None:
    script = tmp_path / "meet.py"
    script.write_text(_MEET)
    paths = os.pathsep.join([str(PACKAGES), environment()["PYTHONPATH"]])
    words = ["--nproc_per_node=1", f"--master_port={find_free_network_port()}", "-x", "PYTHONPATH", "-x", "SECRET"]
    command = [sys.executable, "-m", "bagua.script.baguarun", *words, str(script), "--lr", "1"]
    changes = {
        "PYTHONPATH": paths,
        "SECRET": "hush-hush",
        "PELTON_SSH": f"'{ssh}'",
        "BAGUA_NODE_DOMAIN_NAMES": "127.0.0.1,localhost",
        "BAGUA_SSH_PORT": "22",
    }
    lines = _lines(run(command, 180, changes))
    assert lines == [f"[rank {r}] total 3.0 {r} hush-hush {os.getcwd()} ['--lr', '1']" for r in range(2)]
    assert all("hush-hush" not in word for line in _lines_of(ssh) for word in line)


def test_ranks_of_two_hosts_with_networks_of_their_own_meet(
    hosts: Hosts, ssh_between_hosts: Path, tmp_path: Path
) -> None:
    """An ssh that enters namespaces; memory is shared inside each of them only."""
    addresses = [hosts.address(host) for host in range(2)]
    script = tmp_path / "meet.py"
    script.write_text(_MEET)
    words = [
        f"--host_list={','.join(addresses)}",
        "--insecure",
        "-x",
        "PYTHONPATH",
        "-x",
        "SECRET",
        "--ssh",
        f"'{ssh_between_hosts}'",
    ]
    command = [sys.executable, "-m", "pelton_run.baguarun", "--nproc_per_node=2", *words, str(script)]
    outcome = run(command, 240, {"SECRET": "hush-hush", "PELTON_QUIET": "0"})
    assert outcome.code == 0, outcome.errors
    expected = [f"[rank {r}] total 10.0 {r // 2} hush-hush {os.getcwd()} []" for r in range(4)]
    assert sorted(outcome.output.splitlines()) == expected
    assert "4 rank(s) on 2 host(s)" in outcome.errors


def test_a_rank_that_fails_ends_the_other_hosts(command: Command) -> None:
    words = [_TWO, "--no_python", "sh", "-c", "[ $RANK = 0 ] || exit 7; exec sleep 600"]
    begin = time.monotonic()
    outcome = run(command(*words), 120)
    assert outcome.code == 7
    assert "host localhost (node 1)" in outcome.errors
    assert "rank 1 (pid" in outcome.errors
    assert "Traceback" not in outcome.errors
    assert outcome.errors.count("rank 1 (pid") == 1  # a host's launcher has told of its ranks
    assert time.monotonic() - begin < 100


def test_a_host_that_is_not_reached_is_named(command: Command) -> None:
    outcome = run(command("--host_list=gone.invalid", "--no_python", "true"), 60)
    assert outcome.code == 255
    assert "ssh: no route to gone.invalid" in outcome.errors
    assert "host gone.invalid (node 0)" in outcome.errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_baguarun_ends_the_ranks_of_all_hosts(command: Command, number: signal.Signals) -> None:
    script = "echo $PELTON_LAUNCH_MARK; exec sleep 600"
    process = subprocess.Popen(
        command(_TWO, "--no_python", "sh", "-c", script), env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    marks = [process.stdout.readline().split()[-1] for _ in range(2)]
    assert all(processes_of(mark) for mark in marks)
    process.send_signal(number)
    process.wait(60)
    end = time.monotonic() + 60
    while any(map(processes_of, marks)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(processes_of, marks))


def test_there_is_no_such_ssh() -> None:
    words = ["--host_list=a", "--ssh=/nonexistent/ssh", "--nproc_per_node=1", "t.py"]
    outcome = run(
        [
            sys.executable,
            "-c",
            "from pelton_run.command_line import main; raise SystemExit(main())",
            "baguarun",
            *words,
        ],
        60,
    )
    assert outcome.code == 2
    assert "pelton baguarun: /nonexistent/ssh" in outcome.errors
    assert "Traceback" not in outcome.errors


def test_hosts_and_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("BAGUA_", "PELTON_"))]:
        monkeypatch.delenv(name)
    words = ["baguarun", "--nproc_per_node", "2", "--host_list", "a.b:22, me@10.0.0.1,[fe80::1%eth0]:7", "-x", "A=b=c"]
    monkeypatch.setattr(sys, "argv", [*words, "t.py"])
    monkeypatch.setenv("LD_LIBRARY_PATH", "/lib")
    options = parse_args()
    assert options.host_list == [Host("a.b", 22), Host("me@10.0.0.1"), Host("fe80::1%eth0", 7)]
    assert [host.address for host in options.host_list] == ["a.b", "10.0.0.1", "fe80::1%eth0"]
    assert options.set_env == {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/lib", "A": "b=c"}
    assert options.ssh == ["ssh"]
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert set(parse_args().set_env) == {"PATH", "A"}
    monkeypatch.setenv("BAGUA_SSH_PORT", "1")
    monkeypatch.setenv("PELTON_SSH_PORT", "2")
    assert parse_args().ssh_port == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["t.py"], "--host_list h1"),
        (["--host_list=-oProxyCommand=x", "t.py"], "'-oProxyCommand=x' is not"),
        (["--host_list=a:b", "t.py"], "'a:b' is not"),
        (["--host_list=a:70000", "t.py"], "'a:70000' is not"),
        (["--host_list=a b", "t.py"], "'a b' is not"),
        (["--host_list=a", "-x", "B C=1", "t.py"], "-x 'B C'"),
        (["--host_list=a", "-x", "PELTON_UNSET_HERE", "t.py"], "-x PELTON_UNSET_HERE: is not set here"),
        (["--host_list=a", "-x", f"A={'x' * 50000}", "t.py"], "bytes; at most 60000"),
        (["--host_list=a", "--nproc_per_node=0", "t.py"], "--nproc_per_node 0"),
        (["--host_list=a", "--ssh", "it's", "t.py"], "No closing quotation"),
        (["--host_list=a", "--enable_bagua_net", "t.py"], "plug-in for the sockets of Bagua's NCCL"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BAGUA_NODE_DOMAIN_NAMES", raising=False)
    with pytest.raises(SystemExit) as ended:
        parsed(["--nproc_per_node=1", *words])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
