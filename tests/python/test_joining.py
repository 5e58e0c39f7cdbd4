"""How ranks find each other: launcher, torchrun, store or alone; and what happens when one is missing or wrong."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from spawn import environment, launcher, run

PROGRAM = """
import json, os, sys
import torch
import pelton.torch_api as bagua
bagua.init_process_group(**json.loads(os.environ.get("INIT_ARGUMENTS", "{}")))
tensor = torch.full((4,), 1.0 + bagua.get_rank())
bagua.allreduce_inplace(tensor)
print(f"sum={tensor[0].item():g} of {bagua.get_world_size()}", flush=True)
"""
WITH_STORE = """
import os, sys
import torch
import pelton.torch_api as bagua
rank = int(sys.argv[1])
store = torch.distributed.FileStore(sys.argv[2], 2)
bagua.init_process_group(store, rank, 2, 2)
assert os.environ["LOCAL_RANK"] == str(rank) and bagua.get_world_size() == 2
tensor = torch.full((4,), 1.0 + rank)
bagua.allreduce_inplace(tensor)
print(f"sum={tensor[0].item():g} of 2")
"""
BESIDE_TORCH = """
import torch, torch.distributed as dist
import pelton.torch_api as bagua
dist.init_process_group("gloo")
bagua.init_process_group()
ours, theirs = torch.ones(3), torch.ones(3)
bagua.allreduce_inplace(ours, dist.ReduceOp.SUM)
dist.all_reduce(theirs)
assert torch.equal(ours, theirs)
bagua.destroy_process_group()
bagua.init_process_group()
bagua.barrier()
bagua.destroy_process_group()
dist.destroy_process_group()
print(f"sum={ours[0].item():g} of 2", flush=True)
"""
AGAIN = """
import torch
import pelton.torch_api as bagua
for turn in range(8):
    bagua.init_process_group()
    tensor = torch.full((4,), 1.0 + bagua.get_rank())
    bagua.allreduce_inplace(tensor)
    bagua.destroy_process_group()
print(f"sum={tensor[0].item():g} of 2", flush=True)
"""

RETRIED = """
import os, pathlib, sys, time
import torch
import pelton.torch_api as bagua
from pelton.errors import DeadlineExceeded
failed, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
while rank == 1 and not failed.exists():
    time.sleep(0.01)
if rank == 0:
    try:
        bagua.init_process_group(join_timeout=0.5)
    except DeadlineExceeded as error:
        assert "missing: 1" in str(error), error
        failed.touch()
bagua.init_process_group()
tensor = torch.full((4,), 1.0 + rank)
bagua.allreduce_inplace(tensor)
print(f"sum={tensor[0].item():g} of 2", flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def _torchrun(world_size: int, *words: object) -> list[str]:
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={world_size}",
        *map(str, words),
    ]


def _rank(program: Path, changes: dict[str, str], *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(program), *map(str, words)],
        env=environment(changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(ranks: list[subprocess.Popen[str]], limit_s: float = 60) -> list[tuple[int, str, str]]:
    end = time.monotonic() + limit_s
    try:
        texts = [rank.communicate(timeout=max(0.1, end - time.monotonic())) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, *text) for rank, text in zip(ranks, texts)]


def test_torchrun_unchanged(program: Path) -> None:
    outcome = run(_torchrun(2, program), 90)
    assert outcome.code == 0, outcome.errors
    assert outcome.output.count("sum=3 of 2") == 2


def test_beside_torchs_own_group(tmp_path: Path) -> None:
    program = tmp_path / "beside.py"
    program.write_text(BESIDE_TORCH)
    for command in (launcher(2, program), _torchrun(2, program)):
        outcome = run(command, 90)
        assert outcome.code == 0, outcome.errors
        assert outcome.output.count("sum=2 of 2") == 2


@pytest.mark.parametrize("through", ["launcher", "store"])
def test_a_rank_that_had_to_try_again_meets_the_others(tmp_path: Path, through: str) -> None:
    program = tmp_path / "retried.py"
    program.write_text(RETRIED)
    words = program, tmp_path / "failed"
    outcome = run(launcher(2, *words) if through == "launcher" else _torchrun(2, *words), 120)
    assert outcome.code == 0, outcome.errors
    assert outcome.output.count("sum=3 of 2") == 2


def test_a_variable_without_effect_is_told_once(program: Path) -> None:
    outcome = run(launcher(2, program), 90, {"BAGUA_REPORT_METRICS": "1"})
    assert outcome.code == 0, outcome.errors
    assert outcome.errors.count("BAGUA_REPORT_METRICS is set in the environment, but has no effect in Pelton") == 1


def test_two_jobs_at_once_do_not_meet(program: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda size: run(launcher(size, program), 90), (2, 3)))
    assert [outcome.code for outcome in outcomes] == [0, 0], [outcome.errors for outcome in outcomes]
    assert outcomes[0].output.count("sum=3 of 2") == 2
    assert outcomes[1].output.count("sum=6 of 3") == 3


def test_a_world_of_one_without_a_launcher(program: Path) -> None:
    (result,) = _finish([_rank(program, {})])
    assert result[:2] == (0, "sum=1 of 1\n"), result


def test_a_store_instead_of_a_launcher(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WITH_STORE)
    results = _finish([_rank(program, {}, rank, tmp_path / "store") for rank in (0, 1)])
    assert [(code, output) for code, output, _ in results] == [(0, "sum=3 of 2\n")] * 2, results


def _job(size: int, port: int) -> dict[str, str]:
    return {
        "PELTON_COORDINATOR": f"127.0.0.1:{port}",
        "PELTON_JOB_TOKEN": "0123456789abcdef",
        "PELTON_JOIN_TIMEOUT": "6",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
    }


def test_a_quick_rank_comes_back_to_the_store(tmp_path: Path) -> None:
    """Rank 0 serves torch's store of the environment: another one in each initialisation would lose who waits in it."""
    program = tmp_path / "again.py"
    program.write_text(AGAIN)
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    results = _finish([_rank(program, {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in (0, 1)])
    assert [(code, output) for code, output, _ in results] == [(0, "sum=3 of 2\n")] * 2, results


def _free_port() -> int:
    from pelton_run.ports import port_of, reserve_port

    with reserve_port() as reserved:
        return port_of(reserved)


def test_a_missing_rank_is_named(program: Path) -> None:
    job = _job(3, _free_port())
    start = time.monotonic()
    results = _finish([_rank(program, {**job, "RANK": str(rank)}) for rank in (0, 2)])
    assert time.monotonic() - start < 25
    for code, _, errors in results:
        assert code == 1
        assert "DeadlineExceeded" in errors
        assert "1" in errors.splitlines()[-1], errors


def test_two_processes_with_one_number(program: Path) -> None:
    job = _job(3, _free_port())
    results = _finish([_rank(program, {**job, "RANK": str(rank)}) for rank in (0, 1, 1)])
    last_lines = [errors.splitlines()[-1] for _, _, errors in results]
    assert all(code == 1 for code, _, _ in results), results
    assert any("AlreadyExists" in line and "1" in line for line in last_lines), last_lines


def test_world_sizes_that_differ(program: Path) -> None:
    job = _job(2, _free_port())
    results = _finish([_rank(program, {**job, "RANK": "0"}), _rank(program, {**job, "RANK": "1", "WORLD_SIZE": "3"})])
    for code, _, errors in results:
        assert code == 1, results
        last_line = errors.splitlines()[-1]
        assert "2" in last_line, errors
        assert "3" in last_line, errors


def test_a_wrong_token(program: Path) -> None:
    job = _job(2, _free_port())
    intruder = {**job, "RANK": "1", "PELTON_JOB_TOKEN": "f" * 16}
    results = _finish([_rank(program, {**job, "RANK": "0"}), _rank(program, intruder)])
    assert "PermissionDenied" in results[1][2], results[1]
    assert "DeadlineExceeded" in results[0][2], results[0]


def test_rank_0_never_comes(program: Path) -> None:
    variables = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "PELTON_JOIN_TIMEOUT": "2",
    }
    ((code, _, errors),) = _finish([_rank(program, variables)])
    assert code == 1
    assert "DeadlineExceeded" in errors.splitlines()[-1] or "PeerLost" in errors.splitlines()[-1], errors
    assert variables["MASTER_PORT"] in errors.splitlines()[-1], errors


@pytest.mark.parametrize(
    ("variables", "texts"),
    [
        ({"WORLD_SIZE": "2", "RANK": "2"}, ["rank=2", "world_size=2"]),
        ({"WORLD_SIZE": "0"}, ["world_size=0"]),
        ({"WORLD_SIZE": "two"}, ["WORLD_SIZE='two'"]),
        ({"PELTON_COORDINATOR": "here"}, ["PELTON_COORDINATOR='here'"]),
        ({"PELTON_COORDINATOR": "127.0.0.1:1", "PELTON_JOB_TOKEN": "short"}, ["PELTON_JOB_TOKEN"]),
        ({"PELTON_TIMEOUT": "-1"}, ["PELTON_TIMEOUT=-1"]),
        ({"INIT_ARGUMENTS": json.dumps({"timeout": 0})}, ["timeout=0"]),
    ],
)
def test_bad_input_is_named(variables: dict[str, str], texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: nothing is started before the check."""
    import pelton.torch_api as bagua
    from pelton.errors import InvalidArgument

    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE") or name.startswith("PELTON_"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidArgument) as raised:
        bagua.init_process_group(**json.loads(os.environ.get("INIT_ARGUMENTS", "{}")))
    for text in texts:
        assert text in str(raised.value)
    assert not bagua.is_initialized()
