"""`pelton.distributed.launch`: Bagua's static launcher, on one node and several."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from pelton.distributed.launch import parse_args
from pelton.torch_api.env import find_free_network_port
from pelton_run import bfrun
from pelton_run.launch import job_options, parsed
from pelton_run.processes import processes_of
from spawn import Outcome, environment, run

COMMAND = [sys.executable, "-m", "pelton_run.launch"]
_SHOW = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"
_MEET = """
import torch
import pelton.torch_api as bagua
bagua.init_process_group()
total = torch.tensor([bagua.get_rank() + 1.0])
bagua.allreduce_inplace(total, op=bagua.ReduceOp.SUM)
print("total", total.item(), "of", bagua.get_world_size())
"""


def _plain(outcome: Outcome) -> list[str]:
    """The lines without their ranks."""
    assert outcome.code == 0, outcome.errors
    return sorted(line.partition("] ")[2] for line in outcome.output.splitlines())


def _shown(
    tmp_path: Path, words: Sequence[object], changes: Mapping[str, str]
) -> list[tuple[dict[str, str], list[str]]]:
    """The environments and arguments of the ranks of one node."""
    script = tmp_path / "show.py"
    script.write_text(_SHOW)
    lines = [json.loads(line) for line in _plain(run([*COMMAND, *map(str, words), str(script), "a b"], 60, changes))]
    return sorted(((found, rest) for found, rest in lines), key=lambda one: int(one[0]["RANK"]))


def test_ranks_of_the_second_node(tmp_path: Path) -> None:
    words = ["--nnodes", 2, "--node_rank=1", "--nproc_per_node", 2, "--master_addr", "10.0.0.7", "--master-port", 1234]
    outer = {"PELTON_COORDINATOR": "10.0.0.1:1", "PELTON_JOB_TOKEN": "of-an-outer-job-1234"}
    shown = _shown(tmp_path, [*words, "--set_additional_flag"], outer)
    assert [rest for _, rest in shown] == [["--local_rank=0", "a b"], ["--local_rank=1", "a b"]]
    expected = {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "1234",
        "OMP_NUM_THREADS": "1",
    }
    for number, (found, _) in enumerate(shown):
        assert (found["RANK"], found["LOCAL_RANK"]) == (str(2 + number), str(number))
        assert {name: found[name] for name in expected} == expected
        assert not {"PELTON_COORDINATOR", "PELTON_JOB_TOKEN"} & found.keys()  # the store at the master leads


def test_threads_are_limited_only_where_nobody_says_how_many(tmp_path: Path) -> None:
    found = _shown(tmp_path, ["--nproc_per_node=2"], {"OMP_NUM_THREADS": "3"})
    assert [one["OMP_NUM_THREADS"] for one, _ in found] == ["3", "3"]
    assert found[0][0]["PELTON_COORDINATOR"].startswith("127.0.0.1:")  # one node alone meets as under pelton run
    assert found[0][0]["MASTER_PORT"] == "29500"


def test_flags_become_variables_under_both_names(tmp_path: Path) -> None:
    values = {
        "--bagua_service_port": ("SERVICE_PORT", "4711"),
        "--default_bucket_size": ("DEFAULT_BUCKET_SIZE", "1024"),
        "--autotune_level": ("AUTOTUNE", "1"),
        "--autotune_max_samples": ("AUTOTUNE_MAX_SAMPLES", "7"),
        "--autotune_sampling_confidence_time": ("AUTOTUNE_SAMPLING_CONFIDENCE_TIME_S", "0.5"),
        "--autotune_warmup_time": ("AUTOTUNE_WARMUP_TIME_S", "2.0"),
        "--host_list": ("NODE_DOMAIN_NAMES", "a,b"),
        "--ssh_port": ("SSH_PORT", "2222"),
    }
    words = [f"{flag}={value}" for flag, (_, value) in values.items()]
    (found, _), *_ = _shown(tmp_path, [*words, "--is_output_autotune_log", "--report_metrics"], {})
    expected = {*values.values(), ("IS_OUTPUT_AUTOTUNE_LOG", "1"), ("REPORT_METRICS", "1")}
    for name, value in expected:
        assert found[f"BAGUA_{name}"] == found[f"PELTON_{name}"] == value
    assert found["AUTO_TUNE_SERVER_ADDR"] == "127.0.0.1:4711"


def test_a_script_may_set_what_no_flag_has_set(tmp_path: Path) -> None:
    """Under Bagua's name, as its tutorials do; a launcher's default under Pelton's name would go before it."""
    (found, _), *_ = _shown(tmp_path, [], {"PELTON_AUTOTUNE_WARMUP_TIME_S": "30.0"})
    baguas = {name.removeprefix("BAGUA_") for name in found if name.startswith("BAGUA_")}
    assert {"DEFAULT_BUCKET_SIZE", "AUTOTUNE", "SERVICE_PORT", "IS_OUTPUT_AUTOTUNE_LOG", "REPORT_METRICS"} < baguas
    assert {name for name in baguas if f"PELTON_{name}" in found} == {"AUTOTUNE_WARMUP_TIME_S"}
    script = tmp_path / "script.py"
    begin = 'import os\nos.environ["BAGUA_DEFAULT_BUCKET_SIZE"] = "1024"\n'
    script.write_text(f"{begin}from pelton.torch_api import env\nprint(env.get_default_bucket_size())")
    assert _plain(run([*COMMAND, str(script)], 60)) == ["1024"]
    assert _plain(run([*COMMAND, "--default_bucket_size=2048", str(script)], 60)) == ["2048"]


def test_defaults_are_baguas_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("BAGUA_", "PELTON_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["launch.py", "train.py", "--nnodes", "3"])
    options = parse_args()
    assert (options.nnodes, options.node_rank, options.nproc_per_node, options.master_addr) == (1, 0, 1, "127.0.0.1")
    assert (options.master_port, options.bagua_service_port, options.default_bucket_size) == (29500, 29501, 10485760)
    assert (options.autotune_max_samples, options.autotune_warmup_time) == (60, 30.0)
    assert options.autotune_sampling_confidence_time == 5.0
    assert options.training_script_args == ["--nnodes", "3"]
    assert "AUTO_TUNE_SERVER_ADDR" not in job_options(options).variables
    monkeypatch.setenv("BAGUA_DEFAULT_BUCKET_SIZE", "5")
    monkeypatch.setenv("BAGUA_SSH_PORT", "23")
    monkeypatch.setenv("PELTON_IS_OUTPUT_AUTOTUNE_LOG", "0")
    assert parse_args().default_bucket_size == 5
    monkeypatch.setenv("PELTON_DEFAULT_BUCKET_SIZE", "6")
    variables = job_options(parse_args()).variables
    assert variables["BAGUA_DEFAULT_BUCKET_SIZE"] == variables["PELTON_DEFAULT_BUCKET_SIZE"] == "6"
    assert variables["PELTON_SSH_PORT"] == "23"
    assert variables["PELTON_IS_OUTPUT_AUTOTUNE_LOG"] == "0"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--enable_bagua_net", "t.py"], "plug-in for the sockets of Bagua's NCCL"),
        (["--nnodes=2", "--node_rank=2", "t.py"], "--node_rank 2: must be between 0 and 1"),
        (["--nnodes=0", "t.py"], "--nnodes 0"),
        (["--nproc_per_node=600", "--nnodes=2", "t.py"], "1024 ranks altogether"),
        (["--master_port=0", "t.py"], "--master_port 0"),
        (["-m", "--no_python", "t.py"], "exclude each other"),
        (["--logdir=/dev/null", "t.py"], "--logdir /dev/null: is not a folder"),
        ([], "training_script"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(words)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_output_goes_to_files(tmp_path: Path) -> None:
    logs = tmp_path / "new" / "logs"
    words = ["--nnodes=2", "--node_rank=1", "--nproc_per_node=2", f"--logdir={logs}", "--no_python"]
    outcome = run([*COMMAND, *words, "sh", "-c", "echo out $RANK; echo error $RANK >&2"], 60)
    assert (outcome.code, outcome.output, outcome.errors) == (0, "", "")
    found = {path.name: path.read_text() for path in logs.iterdir()}
    assert found == {
        f"node_1_local_rank_{local}_{stream}": f"{word} {2 + local}\n"
        for local in range(2)
        for stream, word in (("stdout", "out"), ("stderr", "error"))
    }


def test_launchers_import_no_torch() -> None:
    text = "import sys, pelton_run.launch, pelton_run.baguarun; print('torch' in sys.modules, 'pelton' in sys.modules)"
    outcome = run([sys.executable, "-c", text], 60)
    assert outcome.output == "False False\n", outcome.errors


def test_one_failure_ends_all(tmp_path: Path) -> None:
    words = ["--nproc_per_node=2", f"--logdir={tmp_path}", "--no_python"]
    outcome = run([*COMMAND, *words, "sh", "-c", "[ $RANK = 0 ] || exit 7; exec sleep 600"], 60)
    assert outcome.code == 1
    assert "subprocess.CalledProcessError" in outcome.errors
    assert "non-zero exit status 7" in outcome.errors
    assert f"what it said is in {tmp_path}/node_0_local_rank_1_stderr" in outcome.errors


def test_a_program_that_cannot_be_started() -> None:
    outcome = run([*COMMAND, "--no_python", "/nonexistent/program"], 60)
    assert outcome.code == 2
    assert "/nonexistent/program" in outcome.errors
    assert "Traceback" not in outcome.errors


def test_a_killed_launcher_of_several_nodes_leaves_nothing_behind() -> None:
    script = "setsid sleep 600 & echo $PELTON_LAUNCH_MARK; exec sleep 600"
    words = ["--nnodes=2", "--no_python", "sh", "-c", script]
    process = subprocess.Popen([*COMMAND, *words], env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    mark = process.stdout.readline().split()[-1]
    assert len(processes_of(mark)) >= 1
    process.send_signal(signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 30
    while processes_of(mark) and time.monotonic() < end:
        time.sleep(0.05)
    assert processes_of(mark) == []


def test_ranks_of_two_nodes_meet(tmp_path: Path) -> None:
    script = tmp_path / "meet.py"
    script.write_text(_MEET)
    words = [*COMMAND, "--nnodes=2", f"--master_port={find_free_network_port()}"]
    nodes = [
        subprocess.Popen(
            [*words, f"--node_rank={node}", str(script)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    try:
        for number, node in enumerate(nodes):
            output, errors = node.communicate(timeout=120)
            assert output == f"[rank {number}] total 3.0 of 2\n", errors
    finally:
        for node in nodes:
            node.kill()


@pytest.mark.parametrize("named", ["process", "daemon"])
def test_the_backend_may_work_in_daemons(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    """Also under BlueFog's launcher, as under `pelton run`."""
    monkeypatch.setenv("PELTON_BACKEND", named)
    assert job_options(parsed(["train.py"])).has_daemons == (named == "daemon")
    assert bfrun.parsed(["-np", "2", "true"]).has_daemons == (named == "daemon")


@pytest.mark.parametrize(("parse", "words"), [(parsed, ["train.py"]), (bfrun.parsed, ["-np", "2", "true"])])
def test_another_place_of_the_backend_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], parse: Callable[..., object], words: list[str]
) -> None:
    monkeypatch.setenv("PELTON_BACKEND", "deamon")
    with pytest.raises(SystemExit):
        parse(words)
    assert "PELTON_BACKEND='deamon' in the environment: must be 'process' or 'daemon'" in capsys.readouterr().err
