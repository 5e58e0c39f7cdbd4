"""BlueFog's ranks and topologies, see cases/bluefog_world.py; and its programs as they stand."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from spawn import Outcome, case_ids, check_case, run

MODULE = "cases.bluefog_world"

# Of BlueFog's README.
CONSENSUS = """
import torch
import bluefog.torch as bf
bf.init()
x = torch.Tensor([bf.rank()])
for _ in range(100):
    x = bf.neighbor_allreduce(x)
print(f"{bf.rank()}: Average value of all ranks is {x}")
"""
# The second one, and what it does not say: at the ranks' own pace each has an estimate, and together they have all.
PUSH_SUM = """
import torch
import bluefog.torch as bf
from bluefog.common import topology_util
bf.init()
# Setup the topology for communication
bf.set_topology(topology_util.PowerTwoRingGraph(bf.size()))
outdegree = len(bf.out_neighbor_ranks())
indegree = len(bf.in_neighbor_ranks())
# Create the buffer for neighbors.
x = torch.Tensor([bf.rank(), 1.0])
bf.win_create(x, name="x_buff", zero_init=True)
for _ in range(100):
    bf.win_accumulate(
        x, name="x_buff",
        dst_weights={rank: 1.0 / (outdegree + 1)
                     for rank in bf.out_neighbor_ranks()},
        require_mutex=True)
    x.div_(1+outdegree)
    bf.win_sync_then_collect(name="x_buff")
bf.barrier()
# Do not forget to sync at last!
bf.win_sync_then_collect(name="x_buff")
print(f"{bf.rank()}: Average value of all ranks is {x[0]/x[-1]}")
"""
IN_STEP = """
print("mass", *(round(value, 3) for value in bf.allreduce(x, average=False).tolist()))
for _ in range(40):
    bf.win_accumulate(
        x, "x_buff", dst_weights=dict.fromkeys(bf.out_neighbor_ranks(), 1 / (outdegree + 1)), require_mutex=True)
    x.div_(1 + outdegree)
    bf.barrier()
    bf.win_sync_then_collect(name="x_buff")
    bf.barrier()
print("in step", round((x[0] / x[-1]).item(), 4))
"""
AGAIN = """
import torch, bluefog.torch as bf
for _ in range(3):
    bf.init()
    print("sum", bf.allreduce(torch.ones(1), average=False).item(), flush=True)
    bf.shutdown()
"""
TIMELINE = """
import json, os, torch, bluefog.torch as bf
bf.init()
with bf.timeline_context("mine", "COMPUTE"):
    bf.neighbor_allreduce(torch.ones(2), name="x")
path = os.environ["BLUEFOG_TIMELINE"] + str(bf.rank()) + ".json"
assert "PROC_NEIGHBOR_ALLREDUCE" in open(path).read()
bf.synchronize(bf.broadcast_nonblocking(torch.ones(2), 0))
x = torch.ones(2)
bf.win_create(x, "w")
bf.win_accumulate(x, "w")
bf.win_put(x, "w")
bf.win_get("w")
bf.win_free("w")
assert bf.timeline_start_activity("mine", "never ended")
"""
DYNAMIC = """
import torch, bluefog.torch as bf
from bluefog.common import topology_util
bf.init()
bf.set_topology(topology_util.PowerTwoRingGraph(bf.size()))
own, neighbors = topology_util.GetWeights(bf.load_topology(), bf.rank())
turns = topology_util.GetDynamicSendRecvRanks(bf.load_topology(), bf.rank())
x = torch.tensor([float(bf.rank())], dtype=torch.float64)
for _ in range(200):
    to, come = next(turns)
    share = 1 / (len(come) + 1)
    x = bf.neighbor_allreduce(x, self_weight=share, neighbor_weights={r: share for r in come}, send_neighbors=to)
assert abs(x.item() - (bf.size() - 1) / 2) < 1e-9, x
x = bf.neighbor_allreduce(x, own, neighbors)
print("mean", round(x.item(), 9))
"""


def bfrun(tmp_path: Path, text: str, *flags: object) -> Outcome:
    """Four ranks of a script that imports bluefog."""
    script = tmp_path / "script.py"
    script.write_text(text)
    words = ["-np", 4, *flags, sys.executable, "-m", "pelton.compat", script]
    return run([sys.executable, "-m", "pelton_run.bfrun", *map(str, words)], 240)


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_world(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


def test_the_readmes_consensus_runs_as_it_stands(tmp_path: Path) -> None:
    outcome = bfrun(tmp_path, CONSENSUS)
    assert outcome.code == 0, outcome.errors
    found = re.findall(r"(\d): Average value of all ranks is tensor\(\[1\.5", outcome.output)
    assert sorted(found) == ["0", "1", "2", "3"], outcome.output
    assert outcome.errors == ""


def test_the_readmes_push_sum_runs_as_it_stands(tmp_path: Path) -> None:
    """Nothing holds a rank back: one that does its hundred rounds before the others begin gives nearly all away, and
    what it prints is no mean. No part of the sums is lost by that: they are whole at the end, and rounds in step bring
    all ranks to the mean.
    """
    outcome = bfrun(tmp_path, PUSH_SUM + IN_STEP)
    assert outcome.code == 0, outcome.errors
    found = re.findall(r"(\d): Average value of all ranks is \S+", outcome.output)
    assert sorted(found) == ["0", "1", "2", "3"], outcome.output
    assert outcome.output.count("mass 6.0 4.0") == 4, outcome.output
    assert outcome.output.count("in step 1.5\n") == 4, outcome.output
    assert outcome.errors == ""


def test_a_dynamic_consensus_of_older_names(tmp_path: Path) -> None:
    outcome = bfrun(tmp_path, DYNAMIC)
    assert outcome.code == 0, outcome.errors
    assert outcome.output.count("mean 1.5") == 4


def test_a_job_is_joined_again(tmp_path: Path) -> None:
    outcome = bfrun(tmp_path, AGAIN)
    assert outcome.code == 0, outcome.errors
    assert outcome.output.count("sum 4.0") == 12


def test_a_timeline_is_json_when_it_is_closed(tmp_path: Path) -> None:
    outcome = bfrun(tmp_path, TIMELINE, "--timeline-filename", tmp_path / "time")
    assert outcome.code == 0, outcome.errors
    for rank in range(4):
        events = json.loads((tmp_path / f"time{rank}.json").read_text())
        rows = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
        spans = {(rows[event["pid"]], event["name"]) for event in events if event["ph"] in "XB"}
        named = {("neighbor.allreduce.x", f"{version}_NEIGHBOR_ALLREDUCE") for version in ("ENQUEUE", "PROC", "MPI")}
        named |= {("w", f"{v}_WIN_{what}") for v in ("ENQUEUE", "MPI") for what in ("PUT", "ACCUMULATE", "GET")}
        assert {("mine", "COMPUTE"), *named} <= spans
        assert ("broadcast.noname.0", "ENQUEUE_BROADCAST") in spans
        assert {event["tid"] for event in events if "tid" in event} == {1}


LATE = """
import torch, bluefog.torch as bf
bf.init(lambda size: bf.RingGraph(size, connect_style=2))
if bf.rank() != 1:
    try:
        bf.neighbor_allreduce(torch.ones(2), name="x")
        print("rank", bf.rank(), "is done")
    except TimeoutError as error:
        print("rank", bf.rank(), "says", error)
"""


def test_a_neighbor_that_stays_away_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LATE)
    words = [sys.executable, "-m", "pelton_run.bfrun", "-np", "3", sys.executable, "-m", "pelton.compat", str(script)]
    outcome = run(words, 240, {"PELTON_TIMEOUT": "3"})
    assert outcome.code == 0, outcome.errors
    assert "rank 2 says neighbor_allreduce 'x'" in outcome.output
    assert re.search(r"rank 2 says .*rank(s)? .*1", outcome.output), outcome.output


OTHER_NAMES = """
import sys
import torch, bluefog.torch as bf
bf.init()
name = sys.argv[1 + bf.rank()]
try:
    tensor = torch.ones(2)
    if sys.argv[3] == "neighbor_allgather":
        bf.neighbor_allgather(tensor, name=name or None)
    else:
        bf.neighbor_allreduce(tensor, name=name or None)
except TimeoutError as error:
    print("rank", bf.rank(), "says", error)
"""


@pytest.mark.parametrize(
    ("names", "operation"), [(("x", "y"), "neighbor_allreduce"), (("", "y"), "neighbor_allgather")]
)
def test_neighbors_that_give_other_names_are_told_both(tmp_path: Path, names: tuple[str, str], operation: str) -> None:
    """The rank whose time is over first knows its own; the other one, which is told by it, knows both."""
    script = tmp_path / "script.py"
    script.write_text(OTHER_NAMES)
    words = [sys.executable, "-m", "pelton_run.bfrun", "-np", "2", sys.executable, "-m", "pelton.compat", str(script)]
    outcome = run([*words, *names, operation], 240, {"PELTON_TIMEOUT": "3"})
    assert outcome.code == 0, outcome.errors
    shown = [f"'{name}'" if name else "none" for name in names]
    own = r"rank (\d) says .*; its neighbors match this call by its name, which is (\S+) here: have they called it by"
    ((first, name),) = re.findall(own, outcome.output)
    assert name == shown[int(first)], outcome.output
    other = 1 - int(first)
    both = f"its name, which is {shown[other]} here and {shown[int(first)]} on rank {first}\n"
    assert both in outcome.output, outcome.output


FEWER_BATCHES = """
import sys
import torch, bluefog.torch as bf
bf.init()
early, operation = int(sys.argv[1]), sys.argv[2]
for step in range(2 if bf.rank() == early else 3):
    try:
        if operation == "neighbor_allreduce":
            bf.neighbor_allreduce(torch.ones(2), name="x")
        elif operation == "barrier":
            bf.barrier()
        else:
            bf.allreduce(torch.ones(2), name="x")
    except ConnectionError as error:
        print("rank", bf.rank(), "says", error)
"""


@pytest.mark.parametrize(
    ("early", "operation", "calls"),
    [
        (0, "allreduce", "allreduce 'x'"),
        (1, "allreduce", "allreduce 'x'"),
        (0, "barrier", "barrier"),
        (0, "neighbor_allreduce", "neighbor_allreduce 'x'"),
    ],
)
def test_a_rank_with_fewer_batches_is_named(tmp_path: Path, early: int, operation: str, calls: str) -> None:
    """Both ranks say it where they compare operations; elsewhere the one that is left alone, after ten seconds."""
    script = tmp_path / "script.py"
    script.write_text(FEWER_BATCHES)
    words = [sys.executable, "-m", "pelton_run.bfrun", "-np", "2", sys.executable, "-m", "pelton.compat", str(script)]
    outcome = run([*words, str(early), operation], 240)
    late = 1 - early
    assert outcome.code == 0, outcome.errors
    why = f"(did rank {early} fail, or have fewer batches?)"
    assert f"rank {late} says {calls}: " in outcome.output, outcome.output
    if operation == "neighbor_allreduce":
        left = rf"rank {early} \(pid \d+\) has left: its script ended or called shutdown\(\) 10 s before another rank"
        assert re.search(left, outcome.output) and why in outcome.output, outcome.output
        return
    left = f"rank {early} has left: its script ended or called shutdown() while rank {late} is still in {calls} {why}"
    assert f": {left}" in outcome.output, outcome.output
    assert f"[rank {early}] pelton: {left}" in outcome.errors, outcome.errors


def test_an_exception_on_one_rank_ends_the_job(tmp_path: Path) -> None:
    outcome = bfrun(tmp_path, "import bluefog.torch as bf\nbf.init()\nassert bf.rank() != 1\nbf.barrier()\n")
    assert outcome.code != 0 and "AssertionError" in outcome.errors


STAYS_AWAY = """
import sys, torch, bluefog.torch as bf
bf.init()
bf.win_create(torch.ones(2), "w") if sys.argv[1] == "win_free" else None
if bf.rank() == 0:
    try:
        bf.win_free("w") if sys.argv[1] == "win_free" else bf.set_topology(bf.RingGraph(2))
    except TimeoutError as error:
        print(error)
"""


@pytest.mark.parametrize("name", ["win_free", "set_topology"])
def test_a_wait_is_named_by_what_was_called(tmp_path: Path, name: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(STAYS_AWAY)
    words = [sys.executable, "-m", "pelton_run.bfrun", "-np", "2", sys.executable, "-m", "pelton.compat", script, name]
    outcome = run([str(word) for word in words], 240, {"PELTON_TIMEOUT": "3"})
    assert outcome.code == 0, outcome.errors
    assert re.search(rf"^\[rank 0\] {name}: .*waiting for rank\(s\) 1", outcome.output, re.MULTILINE), outcome.output
