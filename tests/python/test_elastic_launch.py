"""`pelton.distributed.run`: torch's elastic launcher with Bagua's flags."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pelton.compat.aliases import PACKAGES
from pelton.distributed import run as elastic
from pelton_run.processes import MARK_VARIABLE, Guard
from spawn import await_until, environment, is_running, run

_MEET = """
import os, sys
import torch
import bagua.torch_api as bagua
bagua.init_process_group()
total = torch.tensor([bagua.get_rank() + 1.0])
bagua.allreduce_inplace(total, op=bagua.ReduceOp.SUM)
names = ("BAGUA_DEFAULT_BUCKET_SIZE", "PELTON_DEFAULT_BUCKET_SIZE", "LOCAL_WORLD_SIZE")
# One write, so that the lines of two ranks do not mix.
os.write(1, f"total {total.item()} {[os.environ[name] for name in names]} {sys.argv[1:]}\\n".encode())
"""


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("BAGUA_", "PELTON_", "PET_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", dict(os.environ))  # what the launcher sets there is for its ranks


def test_defaults_are_baguas(monkeypatch: pytest.MonkeyPatch) -> None:
    options = elastic.parse_args(["train.py", "--nnodes", "x"])
    assert (options.nnodes, options.rdzv_backend, options.rdzv_id, options.node_rank) == ("1:1", "static", "none", 0)
    assert (options.max_restarts, options.monitor_interval, options.start_method) == (3, 5.0, "spawn")
    assert (options.master_addr, options.master_port, options.bagua_service_port) == ("127.0.0.1", 29500, 29501)
    assert (options.default_bucket_size, options.autotune_level, options.is_output_autotune_log) == (10485760, 0, False)
    assert options.use_env is True
    assert options.training_script_args == ["--nnodes", "x"]
    monkeypatch.setenv("PET_MAX_RESTARTS", "1")
    assert elastic.parse_args(["train.py"]).max_restarts == 1


def test_flags_become_variables_for_the_ranks() -> None:
    words = ["--nproc-per-node=2", "--autotune_level=1", "--bagua-service-port=7", "--master_addr=10.0.0.7"]
    config, command, rest = elastic.config_from_args(elastic.parse_args([*words, "-m", "package.train", "--lr", "1"]))
    assert config.nproc_per_node == 2
    assert config.max_restarts == 3
    assert command == sys.executable
    assert rest == ["-u", "-m", "package.train", "--lr", "1"]
    assert os.environ["PELTON_AUTOTUNE"] == os.environ["BAGUA_AUTOTUNE"] == "1"
    assert os.environ["AUTO_TUNE_SERVER_ADDR"] == "10.0.0.7:7"
    assert os.environ["BAGUA_IS_OUTPUT_AUTOTUNE_LOG"] == "0"
    # A script may set under Bagua's names what no flag has said.
    assert os.environ["BAGUA_DEFAULT_BUCKET_SIZE"] == "10485760"
    assert not {"PELTON_DEFAULT_BUCKET_SIZE", "PELTON_IS_OUTPUT_AUTOTUNE_LOG"} & os.environ.keys()


def test_bagua_net_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        elastic.parse_args(["--enable_bagua_net", "train.py"])
    assert ended.value.code == 2
    assert "plug-in for the sockets of Bagua's NCCL" in capsys.readouterr().err


def test_a_job_under_baguas_name(tmp_path: Path) -> None:
    script = tmp_path / "meet.py"
    script.write_text(_MEET)
    paths = os.pathsep.join([str(PACKAGES), environment()["PYTHONPATH"]])
    words = ["--standalone", "--nproc_per_node=2", "--monitor_interval=0.1", "--default_bucket_size=4096"]
    command = [sys.executable, "-m", "bagua.distributed.run", *words, str(script), "--lr=1"]
    outcome = run(command, 180, {"PYTHONPATH": paths})
    assert outcome.code == 0, outcome.errors
    assert sorted(outcome.output.splitlines()) == ["total 3.0 ['4096', '4096', '2'] ['--lr=1']"] * 2


def test_a_rank_that_fails_is_told_of(tmp_path: Path) -> None:
    words = ["--standalone", "--nproc_per_node=1", "--max_restarts=0", "--monitor_interval=0.1", "--no_python"]
    outcome = run([sys.executable, "-m", "pelton.distributed.run", *words, "sh", "-c", "exit 7"], 180)
    assert outcome.code == 1
    assert "ChildFailedError" in outcome.errors
    assert "exitcode  : 7" in outcome.errors


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    """And so does what a rank has started in a session of its own."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "partial = sys.argv[1] + os.environ['RANK']\n"
        "open(partial + '.new', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "os.rename(partial + '.new', partial)\n"
        "time.sleep(600)\n"
    )
    words = ["--standalone", "--nproc_per_node=2", str(script), str(tmp_path / "pids")]
    launcher = subprocess.Popen([sys.executable, "-m", "pelton.distributed.run", *words], env=environment())
    try:
        files = [tmp_path / f"pids{rank}" for rank in range(2)]
        await_until(lambda: all(file.exists() for file in files))
        pids = [int(pid) for file in files for pid in file.read_text().split()]
    finally:
        launcher.kill()
        launcher.wait()
    await_until(lambda: not any(is_running(pid) for pid in pids))


def test_each_run_has_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of several in a process."""
    marks: list[str | None] = []
    monkeypatch.setattr("torch.distributed.run.run", lambda _: marks.append(os.environ.get(MARK_VARIABLE)))
    guards: list[str] = []
    monkeypatch.setattr(Guard, "__init__", lambda _, mark: guards.append(mark))
    monkeypatch.setattr(Guard, "dismiss", lambda _: None)
    for _ in range(2):
        elastic.run(elastic.parse_args(["train.py"]))
    assert marks == guards and len(set(marks)) == 2
    assert MARK_VARIABLE not in os.environ
