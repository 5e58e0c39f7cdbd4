"""`pelton run`: environment, output, signals, failures, and that nothing is left behind. No torch in here."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from pelton_run import ending
from pelton_run import launcher as launcher_module
from pelton_run.command_line import main
from pelton_run.launcher import _ONE_BLOW_S, Job, JobOptions
from pelton_run.output import LinePrefixer, recent_lines
from pelton_run.ports import port_of, reserve_port
from pelton_run.processes import processes_of
from spawn import environment, launcher, run

Script = Callable[[str], Path]
PRELUDE = "import os, signal, subprocess, sys, time\nrank = int(os.environ['RANK'])\n"


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(PRELUDE + text)
        return path

    yield write


def _start(world_size: int, *words: object, ignores: Collection[int] = ()) -> subprocess.Popen[str]:
    """A launcher that ignores some signals at its start, and no others, whatever the tests themselves ignore."""

    def before_exec() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN if number in ignores else signal.SIG_DFL)

    return subprocess.Popen(
        launcher(world_size, *words),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before_exec,
    )


def _read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return sorted(process.stdout.readline().strip() for _ in range(count))


def _await(condition: Callable[[], bool], limit_s: float = 10) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def _is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_environment_is_torchruns(script: Script) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "OMP_NUM_THREADS"]
    path = script(f"print(*(os.environ[n] for n in {names!r}), sys.argv[1:], flush=True)")
    outcome = run(launcher(3, path, "-np", "x y"), 30)
    assert outcome.code == 0
    expected = [f"[rank {r}] {r} {r} 3 3 0 127.0.0.1 1 ['-np', 'x y']" for r in range(3)]
    assert sorted(outcome.output.splitlines()) == expected


def test_threads_are_limited_only_where_the_user_says_nothing(script: Script) -> None:
    path = script("print(os.environ.get('OMP_NUM_THREADS'))")
    outcome = run(launcher(2, path), 30, {"OMP_NUM_THREADS": "5"})
    assert outcome.output.count("5") == 2
    changed = environment()
    del changed["OMP_NUM_THREADS"]
    result = subprocess.run(launcher(1, path), env=changed, capture_output=True, text=True, timeout=30)
    assert result.stdout == "[rank 0] None\n"


def test_the_token_is_random_and_not_on_a_command_line(script: Script) -> None:
    text = (
        "import glob\n"
        "def words(path):\n"
        "    try:\n"
        "        return open(path, 'rb').read()\n"
        "    except OSError:  # it has ended meanwhile\n"
        "        return b''\n"
        "token = os.environ['PELTON_JOB_TOKEN']\n"
        "print(token, any(token.encode() in words(path) for path in glob.glob('/proc/[0-9]*/cmdline')))"
    )
    path = script(text)
    lines = [run(launcher(1, path), 30).output.split() for _ in range(2)]
    assert lines[0][-1] == lines[1][-1] == "False"
    assert lines[0][-2] != lines[1][-2]
    assert len(lines[0][-2]) >= 16


def test_modules_and_other_programs(script: Script) -> None:
    assert run(launcher(1, "-m", "this"), 30).output.startswith("[rank 0] The Zen of Python")
    outcome = run(launcher(2, "--no-python", "sh", "-c", "echo $RANK"), 30)
    assert sorted(outcome.output.splitlines()) == ["[rank 0] 0", "[rank 1] 1"]
    outcome = run(launcher(1, "--no-python", "/nonexistent/program"), 30)
    assert outcome.code == 2
    assert "/nonexistent/program" in outcome.errors
    assert "Traceback" not in outcome.errors


def test_output_is_kept_apart_and_whole(script: Script) -> None:
    text = (
        "for i in range(200):\n"
        "    print('o' * 300, i); print('e' * 300, i, file=sys.stderr)\n"
        "sys.stdout.write('no end of line')\n"
        "sys.stderr.buffer.write(b'10%\\r20%\\r\\xff\\n')"
    )
    outcome = subprocess.run(launcher(3, script(text)), env=environment(), capture_output=True, timeout=30)
    for stream, letter in ((outcome.stdout, b"o"), (outcome.stderr, b"e")):
        for rank in range(3):
            prefix = b"[rank %d] " % rank
            expected = [prefix + letter * 300 + b" %d" % i for i in range(200)]
            found = [line for line in stream.splitlines() if line.startswith(prefix + letter)]
            assert found == expected
    assert outcome.stdout.count(b"] no end of line\n") == 3
    assert outcome.stderr.count(b"] 10%\r") == outcome.stderr.count(b"] 20%\r") == 3
    assert outcome.stderr.count(b"] \xff\n") == 3


def test_a_long_line_costs_time_in_proportion() -> None:
    pieces: list[bytes] = []
    prefixer = LinePrefixer(b"[rank 3] ", pieces.append, recent_lines())
    begin = time.monotonic()
    for _ in range(64):
        prefixer.feed(b"z" * (60 << 10))
    prefixer.feed(b"\n")
    assert time.monotonic() - begin < 5, "a search for line ends began anew at each byte"
    assert b"".join(pieces).count(b"z") == 64 * (60 << 10)


def test_a_line_is_forwarded_when_it_is_complete(script: Script) -> None:
    path = script("print('now'); time.sleep(60)")
    process = _start(2, path)
    try:
        assert _read_lines(process, 2) == ["[rank 0] now", "[rank 1] now"]
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_failure_ends_all_and_is_told(script: Script) -> None:
    text = "print('working')\nif rank == 1:\n    sys.exit('bad luck')\ntime.sleep(60)"
    start = time.monotonic()
    outcome = run(launcher(3, "--linger", "0.2", script(text)), 30)
    assert time.monotonic() - start < 10
    assert outcome.code == 1
    told = [line for line in outcome.errors.splitlines() if line.startswith("pelton run:")]
    assert "rank 1 (pid " in told[0]
    assert "exited with code 1" in told[0]
    assert "pelton run:   bad luck" in told
    assert "rank 0, 2" in told[-1]


@pytest.mark.parametrize(
    ("death", "code", "words"),
    [
        ("sys.exit(7)", 7, "exited with code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was killed by SIGSEGV"),
    ],
)
def test_the_exit_code_is_the_failed_ranks(script: Script, death: str, code: int, words: str) -> None:
    text = f"if rank == 0:\n    {death}\ntime.sleep(60)"
    outcome = run(launcher(2, "--linger", "0", script(text)), 30)
    assert outcome.code == code
    assert words in outcome.errors


def test_survivors_have_time_to_end_by_themselves(script: Script) -> None:
    text = "if rank == 0:\n    sys.exit(3)\ntime.sleep(1); print('clean')"
    outcome = run(launcher(2, "--linger", "20", script(text)), 15)
    assert outcome.code == 3
    assert "[rank 1] clean" in outcome.output


def test_a_rank_that_ignores_sigterm_is_killed(script: Script) -> None:
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif rank == 0:\n    sys.exit(3)\ntime.sleep(60)"
    start = time.monotonic()
    outcome = run(launcher(2, "--linger", "0.3", "--grace", "0.3", script(text)), 30)
    assert outcome.code == 3
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_forwarded(script: Script, number: signal.Signals) -> None:
    text = (
        "def caught(number, frame):\n"
        "    os.write(1, f'got {signal.Signals(number).name}\\n'.encode())  # print may be under way\n"
        "    sys.exit(0 if number == signal.SIGUSR1 else 9)\n"
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):\n"
        "    signal.signal(number, caught)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    process = _start(2, script(text))
    assert _read_lines(process, 2) == ["[rank 0] ready", "[rank 1] ready"]
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert output.count(f"got {number.name}") == 2
    assert process.returncode == (0 if number == signal.SIGUSR1 else 128 + number)


def test_a_second_interrupt_kills(script: Script) -> None:
    text = (
        "signal.signal(signal.SIGINT, lambda *_: os.write(1, b'interrupted\\n'))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    process = _start(2, script(text))
    _read_lines(process, 2)
    process.send_signal(signal.SIGINT)
    assert _read_lines(process, 2) == ["[rank 0] interrupted", "[rank 1] interrupted"]
    time.sleep(_ONE_BLOW_S)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=5)
    assert process.returncode == 130


def test_two_signals_of_one_blow_leave_the_grace(script: Script) -> None:
    """A terminal that closes sends SIGHUP twice; two signals of one kind may come as one, and these do not."""
    text = (
        "def saves(number, frame):\n"
        "    time.sleep(0.3)\n"
        "    os.write(1, b'saved\\n')\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGHUP, saves)\n"
        "signal.signal(signal.SIGTERM, saves)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    process = _start(1, script(text))
    _read_lines(process, 1)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, "[rank 0] saved\n")


def test_what_was_ignored_at_the_start_stays_ignored(script: Script, tmp_path: Path) -> None:
    """As under nohup."""
    text = (
        "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, flush=True)\n"
        "while not os.path.exists(sys.argv[1]):\n"
        "    time.sleep(0.02)\n"
        "sys.exit(5)"
    )
    process = _start(1, script(text), tmp_path / "go on", ignores=[signal.SIGHUP])
    assert _read_lines(process, 1) == ["[rank 0] True"]
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go on").touch()
    process.communicate(timeout=20)
    assert process.returncode == 5


def test_a_job_succeeds_where_nobody_reaps() -> None:
    process = _start(1, "--no-python", "true", ignores=[signal.SIGCHLD])
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")


DESCENDANTS = (
    "children = [subprocess.Popen(['sleep', '300']), subprocess.Popen(['sleep', '300'], start_new_session=True)]\n"
    "print(os.environ['PELTON_JOB_TOKEN'], os.getpid(), *(c.pid for c in children), flush=True)\n"
)


def _pids_and_token(process: subprocess.Popen[str], ranks: int) -> tuple[list[int], str]:
    lines = [line.split() for line in _read_lines(process, ranks)]
    return [int(word) for words in lines for word in words[3:]], lines[0][2]


def test_no_descendant_outlives_a_job_that_fails(script: Script) -> None:
    process = _start(2, "--linger", "0.2", script(DESCENDANTS + "if rank == 0: sys.exit(5)\ntime.sleep(60)"))
    pids, token = _pids_and_token(process, 2)
    process.communicate(timeout=20)
    assert len(pids) == 6
    assert all(_is_gone(pid) for pid in pids)
    assert processes_of(token) == []


def test_what_successful_ranks_leave_has_time_and_a_session_of_its_own_is_left_alone(script: Script) -> None:
    process = _start(1, "--grace", "0.3", script(DESCENDANTS))
    (_, attached, detached), _ = _pids_and_token(process, 1)
    try:
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0
        assert _is_gone(attached)
        assert not _is_gone(detached)
    finally:
        os.kill(detached, signal.SIGKILL)
    assert f"left running, in sessions of their own: pid {detached} (sleep 300)" in errors
    assert f"waiting 0.3 s for what they have left running: pid {attached} (sleep 300)" in errors
    assert f"ending pid {attached}" in errors


def test_an_upload_that_a_rank_has_begun_is_waited_for(script: Script, tmp_path: Path) -> None:
    command = f"import pathlib, time; time.sleep(1); pathlib.Path({str(tmp_path / 'done')!r}).touch()"
    outcome = run(launcher(1, "--grace", "60", script(f"subprocess.Popen([sys.executable, '-c', {command!r}])")), 60)
    assert outcome.code == 0
    assert (tmp_path / "done").exists()


def test_a_stalled_reader_does_not_keep_the_launcher_alive(script: Script, tmp_path: Path) -> None:
    """As a pager that shows its first page: nothing is read, the ranks wait in print, and SIGTERM ends all."""
    begun = tmp_path / "begun"
    text = f"import pathlib\nprint('x' * 400_000, flush=True)\npathlib.Path({str(begun)!r}).touch()\n"
    process = _start(2, "--grace", "1", script(text + "while True: print('x' * 1000)"))
    assert _await(begun.exists, 30), "more than a pipe holds must be taken from the ranks"
    process.terminate()
    try:
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


def test_a_slow_reader_gets_everything(script: Script, tmp_path: Path) -> None:
    """Also after the ranks have ended, and also when one has failed."""
    ended = tmp_path / "ended"
    text = f"import pathlib\nprint('y' * 600_000, flush=True)\npathlib.Path({str(ended)!r}).touch()\nsys.exit(3)"
    process = _start(1, script(text))
    assert _await(ended.exists, 30)
    with pytest.raises(subprocess.TimeoutExpired):  # longer than a descendant's pipe would be drained for
        process.wait(timeout=4)
    output, errors = process.communicate(timeout=30)
    assert output.count("y") == 600_000
    assert process.returncode == 3
    assert "exited with code 3" in errors


def test_insecure_is_passed_on(script: Script) -> None:
    path = script("print(os.environ.get('PELTON_INSECURE'))")
    assert run(launcher(1, "--insecure", path), 30).output == "[rank 0] 1\n"
    assert run(launcher(1, path), 30).output == "[rank 0] None\n"


def test_nothing_outlives_a_killed_launcher(script: Script) -> None:
    process = _start(2, script(DESCENDANTS + "time.sleep(60)"))
    pids, token = _pids_and_token(process, 2)
    process.kill()
    process.wait()
    assert _await(lambda: all(_is_gone(pid) for pid in pids)), [pid for pid in pids if not _is_gone(pid)]
    assert processes_of(token) == []
    process.communicate(timeout=10)  # nobody holds the pipes, the guard included


@pytest.mark.parametrize("goes_on", ["while True: print('x' * 1000)", "while True: pass", "time.sleep(600)"])
def test_a_reader_that_goes_away_ends_the_job(script: Script, goes_on: str) -> None:
    """Also one whose ranks print nothing more: they would spin or sleep where nobody sees them."""
    text = f"subprocess.Popen(['sleep', '300'])\nprint(os.environ['PELTON_JOB_TOKEN'], flush=True)\n{goes_on}"
    process = _start(2, "--grace", "0.5", script(text))
    assert process.stdout is not None
    try:
        token = process.stdout.readline().split()[2]
        assert processes_of(token)
        process.stdout.close()
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
        assert processes_of(token) == []
    finally:
        process.kill()
        process.wait()


def test_a_fifo_that_can_be_read_is_no_reader_that_has_gone(script: Script, tmp_path: Path) -> None:
    """`exec 3<>fifo` does not wait for the fifo's other end."""
    os.mkfifo(tmp_path / "fifo")
    fifo = os.open(tmp_path / "fifo", os.O_RDWR)
    text = "print('one', flush=True)\ntime.sleep(0.3)\nprint('two', flush=True)"
    code = subprocess.run(launcher(1, script(text)), env=environment(), stdout=fifo, timeout=30).returncode
    assert (code, os.read(fifo, 100)) == (0, b"[rank 0] one\n[rank 0] two\n")
    os.close(fifo)


def test_what_cannot_be_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs in the kernel."""
    nobody = 2**30
    monkeypatch.setattr(ending, "processes_of", lambda token: [nobody])
    monkeypatch.setattr(ending, "kill_job", lambda token, spared: None)
    said: list[str] = []
    end = ending.Ending("token", 0.0, said.append)
    for _ in range(3):  # it has time, SIGTERM, SIGKILL
        end.advance(is_orderly=True)
        assert not end.is_over(is_drained=True, was_signalled=False, is_behind=False)
    end.advance(is_orderly=True)
    assert end.is_over(is_drained=True, was_signalled=False, is_behind=False)
    assert said[-1] == f"could not be ended, and is left: pid {nobody} (ended)"
    assert end.spared == {nobody}


def test_a_rank_that_cannot_be_killed_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It hangs in the kernel, say."""
    kills: list[int] = []

    def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
        kills.extend([number] if number == signal.SIGKILL else [])
        if len(kills) == 3:
            process.kill()

    monkeypatch.setattr(launcher_module, "signal_group", signal_group)
    job = Job(JobOptions(["sh", "-c", "test $RANK = 1 && exec sleep 60; exit 3"], 2, linger_s=0.0, grace_s=0.1))
    assert job.run() == 3
    said = re.findall(r"rank (\d) \(pid \d+\) was killed and does not end; its state is [A-Z]", capfd.readouterr().err)
    assert said == ["1", "1"]


def test_reserved_ports_can_be_served_by_their_owner_only() -> None:
    with reserve_port() as reserved:
        port = port_of(reserved)
        with socket.socket() as plain, pytest.raises(OSError):
            plain.bind(("127.0.0.1", port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in (
        (["-np", "0", "x.py"], "-np 0"),
        (["-np", "5000", "x.py"], "-np 5000"),
        (["--grace", "-1", "x.py"], "--grace -1"),
        (["-m", "--no-python", "x"], "exclude"),
        ([], "program"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["run", *words])
        assert ended.value.code == 2
        assert text in capsys.readouterr().err
    assert main(["rum"]) == 2
    assert main(["--help"]) == 0


def test_starting_is_fast(script: Script) -> None:
    """The launcher does not import torch, which takes seconds."""
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pelton_run", "-np", "1", str(script(""))],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "pelton_run.launcher" in result.stderr
    assert "torch" not in result.stderr
    assert os.environ.get("PELTON_JOB_TOKEN") is None
