"""Every wait is heard: by signals, by people who are told that it lasts, and by errors that name it."""

from __future__ import annotations

import concurrent.futures
import functools
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from spawn import HERE, Outcome, launcher, run

WORLD_SIZE = 2
# A wait asks every 50 ms; the rest is a busy machine's.
HEARD_WITHIN_S = 3.0
SIGNALS = {
    # scenario -> what rank 0 gets, what rank 1 gets
    "sigint_in_backward": ("KeyboardInterrupt", {"Aborted"}),
    "sigint_in_a_barrier": ("KeyboardInterrupt", {"Aborted"}),
    "sigint_in_a_torch_wait": ("KeyboardInterrupt", {"Aborted"}),
    "sigint_in_a_torch_call": ("KeyboardInterrupt", {"Aborted"}),
    "sigint_while_a_group_opens": ("KeyboardInterrupt", {"Aborted"}),
    "a_handler_raises": ("Raised", {"Aborted"}),
}
STALLS = {
    "a_stall_in_backward": ["model 'Sequential_0', rank 0, round 2: bucket ", " has taken ", "waiting for rank 1"],
    "a_stall_in_a_barrier": ["rank 0 has waited ", " in barrier of group 'default'; waiting for rank(s) 1"],
    "a_stall_in_a_torch_call": ["rank 0 has waited ", " in barrier of process group ", "waiting for rank(s) 1"],
    "a_stall_while_a_group_opens": ["rank 0 has waited ", "opening a communicator of ranks 0, 1"],
}
OTHERS = ("a_handler_returns", "a_stall_without_logging", "a_missed_deadline", "autotune_on_one_rank", "a_silent_rank")
VARIABLES = {
    "a_missed_deadline": {"PELTON_STALL_SECONDS": "0"},
    "autotune_on_one_rank": {"PELTON_STALL_SECONDS": "0"},
    "a_silent_rank": {"PELTON_HEARTBEAT_TIMEOUT": "2", "PELTON_STALL_SECONDS": "0"},
}


@functools.cache
def _outcomes(folder: Path) -> dict[str, Outcome]:
    """All scenarios, two jobs at a time: most of their time they wait."""

    def job(name: str) -> Outcome:
        results = folder / name
        results.mkdir()
        command = launcher(WORLD_SIZE, "--linger", 60, HERE / "cases" / "waits.py", name, results)
        outcome = run(command, 180, VARIABLES.get(name, {"PELTON_STALL_SECONDS": "0.3"}))
        outcome.results = {int(path.stem): json.loads(path.read_text()) for path in results.glob("*.json")}
        return outcome

    names = [*SIGNALS, *STALLS, *OTHERS]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(job, names)))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("waits")


def _reports(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    outcome = _outcomes(folder)[name]
    assert set(outcome.results) == {0, 1}, f"{sorted(outcome.results)} reported; {outcome.code}\n{outcome.errors}"
    return outcome.results[0], outcome.results[1]


@pytest.mark.parametrize("name", SIGNALS)
def test_a_wait_ends_with_what_the_signals_handler_raised(name: str, folder: Path) -> None:
    waiting, _ = _reports(name, folder)
    assert waiting["type"] == SIGNALS[name][0], waiting
    assert 0 <= waiting["seconds"] < HEARD_WITHIN_S, waiting


@pytest.mark.parametrize("name", SIGNALS)
def test_the_other_ranks_are_told_of_the_signal(name: str, folder: Path) -> None:
    _, other = _reports(name, folder)
    assert other["type"] in SIGNALS[name][1], other
    assert "interrupted by a signal" in other["text"], other
    assert "rank 0" in other["text"], other


@pytest.mark.parametrize("name", SIGNALS)
def test_the_process_survives_the_signal(name: str, folder: Path) -> None:
    outcome = _outcomes(folder)[name]
    assert outcome.code == 0, outcome.errors


def test_a_wait_goes_on_after_a_handler_that_returns(folder: Path) -> None:
    waiting, other = _reports("a_handler_returns", folder)
    assert (waiting["type"], other["type"]) == ("", ""), (waiting, other)
    assert waiting["handled"] == ["FailedPrecondition"], "a wait within a wait's handler could not end"


@pytest.mark.parametrize("name", STALLS)
def test_a_stall_is_told_with_whom_and_what_it_waits_for(name: str, folder: Path) -> None:
    waiting, other = _reports(name, folder)
    assert (waiting["type"], other["type"]) == ("", ""), (waiting, other)
    for text in STALLS[name]:
        assert text in waiting["lines"][0], waiting


def test_a_stall_goes_to_standard_error_where_nothing_is_configured(folder: Path) -> None:
    errors = _outcomes(folder)["a_stall_without_logging"].errors
    assert "[rank 0] pelton: rank 0 has waited " in errors, errors
    assert "waiting for rank(s) 1" in errors, errors


def test_a_missed_deadline_names_the_call_and_its_group(folder: Path) -> None:
    waiting, _ = _reports("a_missed_deadline", folder)
    assert waiting["type"] == "DeadlineExceeded", waiting
    assert waiting["text"].startswith("barrier of group 'default': rank 0: "), waiting
    assert "waiting for rank(s) 1" in waiting["text"], waiting


def test_autotune_on_one_rank_alone_is_named(folder: Path) -> None:
    waiting, _ = _reports("autotune_on_one_rank", folder)
    assert waiting["type"] == "DeadlineExceeded", waiting
    assert waiting["text"].startswith("autotune of model 'Linear_"), waiting
    assert "waiting for rank(s) 1" in waiting["text"], waiting


def test_the_heartbeats_timeout_is_a_variable(folder: Path) -> None:
    outcome = _outcomes(folder)["a_silent_rank"]
    waiting = outcome.results[0]
    assert waiting["type"] in {"PeerLost", "Aborted"}, waiting
    assert "rank 1" in waiting["text"], waiting
    assert 1 < waiting["seconds"] < 9, "2 s are set, 10 s are the default"


_JOINING = """
import os, signal, sys, threading, time
import pelton.torch_api as bagua
main, sent = threading.main_thread(), []
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored

def kick():
    while not any("init_process_group" in str(frame) for frame in _stack()):
        time.sleep(0.05)
    time.sleep(1)  # it waits for the other rank, who never comes; an earlier signal would be heard all the more
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

def _stack():
    frame = sys._current_frames()[main.ident]
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back

threading.Thread(target=kick, daemon=True).start()
try:
    bagua.init_process_group()
except KeyboardInterrupt:
    print("interrupted after", time.monotonic() - sent[0])
"""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("meets", ["at a launcher's coordinator", "through torch's store"])
def test_joining_is_interrupted(rank: int, meets: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    if meets == "through torch's store":
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    else:
        place |= {"PELTON_COORDINATOR": f"127.0.0.1:{port}", "PELTON_JOB_TOKEN": "a" * 32}
    place |= {"PELTON_TIMEOUT": "600", "PELTON_JOIN_TIMEOUT": "600"}
    outcome = run([sys.executable, "-c", _JOINING], 120, place)
    assert outcome.output.startswith("interrupted after "), outcome.errors
    assert float(outcome.output.split()[-1]) < HEARD_WITHIN_S


def _alone(text: str, changes: dict[str, str]) -> Outcome:
    begin = "import logging, sys, torch, pelton.torch_api as bagua\nfrom cases.checks import *\n"
    steps = (
        "bagua.init_process_group()\n"
        "model = wrap(nn.Sequential(nn.Linear(6, 3)))\n"
        "square_loss(model, batch(0, 0, 4, 6)).backward()\n"
        "bagua.destroy_process_group()\n"
    )
    return run([sys.executable, "-c", begin + text + steps], 120, changes)


def test_a_line_at_the_start_for_each_model_and_at_the_end() -> None:
    outcome = _alone("", {"PELTON_QUIET": "0"})
    assert outcome.code == 0, outcome.errors
    lines = [line for line in outcome.errors.splitlines() if line.startswith("pelton: ")]
    assert lines[0] == "pelton: 1 rank(s) on 1 host(s), over shared memory"
    assert lines[1].startswith("pelton: model 'Sequential_0': gradient_allreduce, 2 tensors of 84 bytes in 1 ")
    assert lines[2].startswith("pelton: the job took ")
    assert "model 'Sequential_0': 1 rounds, " in lines[2]
    assert len(lines) == 3


def test_the_line_of_a_model_names_an_algorithm_without_a_class_of_its_own() -> None:
    text = "import pelton\nwrap = lambda net: pelton.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1), 'slowmo')\n"
    outcome = _alone(text, {"PELTON_QUIET": "0"})
    assert outcome.code == 0, outcome.errors
    assert "pelton: model 'Sequential_0': slowmo, 2 tensors " in outcome.errors


def test_quiet_is_quiet() -> None:
    assert "pelton: " not in _alone("", {"PELTON_QUIET": "1"}).errors


def test_logging_that_is_configured_gets_every_line() -> None:
    setup = "logging.basicConfig(level=logging.INFO, format='%(name)s/%(levelname)s/%(message)s')\n"
    errors = _alone(setup, {"PELTON_QUIET": "0"}).errors
    assert "pelton/INFO/1 rank(s) on 1 host(s), over shared memory" in errors
    setup = "logging.basicConfig(level=logging.WARNING)\n"
    assert "1 rank(s)" not in _alone(setup, {"PELTON_QUIET": "0"}).errors, "the user asked for warnings only"
