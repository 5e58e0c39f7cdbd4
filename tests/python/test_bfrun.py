"""`bfrun`: BlueFog's launcher, on this host and behind a program that stands in for ssh."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from pelton_run.bfrun import parsed
from spawn import Outcome, run

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.network.hosts import Hosts

_SHOW = (
    "import os; print('rank', os.environ['OMPI_COMM_WORLD_RANK'], 'of', os.environ['OMPI_COMM_WORLD_SIZE'], "
    "os.environ['OMPI_COMM_WORLD_LOCAL_RANK'], os.environ['OMPI_COMM_WORLD_LOCAL_SIZE'], "
    "os.environ.get('BLUEFOG_TIMELINE'), os.environ.get('PELTON_INTERFACE'), os.environ.get('OF_MINE'), flush=True)"
)
_SUM = """
import torch, pelton.torch_api as bagua
bagua.init_process_group()
total = torch.tensor([bagua.get_rank() + 1.0])
bagua.allreduce_inplace(total, op=bagua.ReduceOp.SUM)
print("total", total.item(), flush=True)
"""


def bfrun(*words: object, limit_s: float = 120, **variables: str) -> Outcome:
    return run([sys.executable, "-m", "pelton_run.bfrun", *map(str, words)], limit_s, variables)


def test_ranks_have_open_mpis_names() -> None:
    outcome = bfrun("-np", 2, "--timeline-filename", "time", sys.executable, "-c", _SHOW, OF_MINE="here")
    assert outcome.code == 0, outcome.errors
    assert sorted(outcome.output.splitlines()) == [
        f"[rank {rank}] rank {rank} of 2 {rank} 2 time None here" for rank in range(2)
    ]


def test_ranks_meet(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SUM)
    outcome = bfrun("-np", 2, "--verbose", sys.executable, script)
    assert outcome.code == 0, outcome.errors
    assert outcome.output.count("total 3.0") == 2
    assert "localhost" in outcome.errors and "script.py" in outcome.errors


@pytest.mark.parametrize("form", ["flag", "file"])
def test_hosts_are_reached_by_ssh(ssh: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / "hosts"
    file.write_text("# two of them\n127.0.0.1 slots=1\nlocalhost slots=4\n")
    hosts = ("-H", "127.0.0.1:1,localhost:4") if form == "flag" else ("-hostfile", file)
    words = ("-np", 2, "--ssh", f"'{ssh}'", "-p", 2222, "--network-interface", "lo", *hosts)
    outcome = bfrun(*words, sys.executable, "-c", _SHOW, OF_MINE="a 'quoted' value")
    assert outcome.code == 0, outcome.errors
    assert sorted(outcome.output.splitlines()) == [
        f"[rank {rank}] rank {rank} of 2 0 1 None lo a 'quoted' value" for rank in range(2)
    ]
    said = [path.read_text().split() for path in ssh.parent.glob(f"{ssh.name}.*")]
    assert len(said) == 2 and all(words[words.index("-p") + 1] == "2222" for words in said)


_AVERAGE = """
import os, torch
import pelton.bluefog.torch as bf
bf.init(bf.RingGraph)
assert (bf.machine_size(), bf.local_size()) == (2, 2), bf.machine_size()
x = torch.tensor([float(bf.rank())])
bf.win_create(x, "x", zero_init=True)
bf.win_put(x, "x")
bf.barrier()
put = bf.win_update("x", clone=True).item()
print("rank", bf.rank(), os.environ["OMPI_COMM_WORLD_LOCAL_RANK"], bf.allreduce(x).item(), put, flush=True)
"""


@pytest.mark.parametrize("form", ["flag", "file"])
def test_ranks_of_two_hosts_with_networks_of_their_own_average(
    hosts: Hosts, ssh_between_hosts: Path, tmp_path: Path, form: str
) -> None:
    """By an ssh that enters network namespaces: collectives, and windows between neighbors on both hosts."""
    script, file = tmp_path / "script.py", tmp_path / "hosts"
    script.write_text(_AVERAGE)
    addresses = [hosts.address(host) for host in range(2)]
    file.write_text("".join(f"{address} slots=2\n" for address in addresses))
    places = ("-H", ",".join(f"{address}:2" for address in addresses)) if form == "flag" else ("-hostfile", file)
    words = ("--insecure", "--ssh", f"'{ssh_between_hosts}'", "--network-interface", hosts.interface, *places)
    outcome = bfrun("-np", 4, *words, sys.executable, script, limit_s=240)
    assert outcome.code == 0, outcome.errors
    means = {0: (3 + 0 + 1) / 3, 1: 1.0, 2: 2.0, 3: (2 + 3 + 0) / 3}
    found = [line.split()[2:] for line in sorted(outcome.output.splitlines())]
    assert [words[:4] for words in found] == [["rank", str(r), str(r % 2), "1.5"] for r in range(4)], outcome.output
    assert [float(words[4]) for words in found] == pytest.approx(list(means.values())), outcome.output


def test_a_failed_rank_ends_the_others() -> None:
    code = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(100)"
    outcome = bfrun("-np", 2, sys.executable, "-c", code)
    assert outcome.code == 7 and "bfrun: rank 1" in outcome.errors


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-np", "2", "--use-infiniband", "python"], "PELTON_WIRE=ucx"),
        (["-np", "2", "--extra-mpi-flags", "-mca a b", "python"], "PELTON_INTERFACE"),
        (["-np", "2", "--prefix", "/opt", "python"], "no MPI"),
        (["python", "script.py"], "-np None: must be between"),
        (["-np", "0", "python"], "must be between"),
        (["-np", "2"], "no program"),
        (["-np", "5", "-H", "a:2,b:2", "python"], "the hosts have 4 slots"),
        (["-np", "3", "-H", "a:2,b:2", "python"], "a:2, b:1: all hosts must have equally many"),
        (["-np", "2", "-H", "a:x", "python"], "'a:x' is not host"),
        (["-np", "2", "-hostfile", "/no/such", "python"], "No such file"),
        (["-np", "2", "-H", "a", "-hostfile", "b", "python"], "not allowed with"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(words)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_a_line_of_a_hostfile_that_is_another_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb slots=none\n")
    with pytest.raises(SystemExit):
        parsed(["-np", "2", "-hostfile", str(file), "python"])
    assert "line 2" in capsys.readouterr().err


def test_a_users_variable_goes_with_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name may begin as that of one which means nothing on another machine."""
    for name in ("USER", "HOME", "TERM", "SSH_TTY", "USER_LR", "HOME_DATA", "DISPLAY_EVERY"):
        monkeypatch.setenv(name, "1")
    words = parsed(["-np", "2", "-H", "a,b", "true"]).remote
    sent = {word.partition("=")[0] for before, word in itertools.pairwise(words) if before == "-x"}
    assert {"USER_LR", "HOME_DATA", "DISPLAY_EVERY"} <= sent
    assert sent.isdisjoint({"USER", "HOME", "TERM", "SSH_TTY"})
