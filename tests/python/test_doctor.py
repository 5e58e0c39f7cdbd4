"""`pelton doctor` and `pelton --version`."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
from pelton_run import doctor
from pelton_run.command_line import main
from spawn import PACKAGES, run

COMMAND = [sys.executable, "-c", "import sys; from pelton_run.command_line import main; sys.exit(main(sys.argv[1:]))"]


def test_every_line_says_ok_or_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    findings = [finding for check in doctor.CHECKS for finding in check()]
    assert {finding.level for finding in findings} <= {"ok", "note"}
    assert not [finding for finding in findings if finding.level == "ok" and finding.remedy]
    printed = capsys.readouterr().out
    for word in ("torch", "cores", "memory", "open files", "process_vm_readv", "interfaces", "UCX", "GPU", "clock"):
        assert word in printed


def test_a_wrong_interface_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_INTERFACE", "nowhere0")
    wrong = [finding for finding in doctor.network() if finding.level == "wrong"]
    assert [finding.what for finding in wrong] == ["PELTON_INTERFACE=nowhere0 is none of them"]
    assert wrong[0].remedy


def test_memory_that_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_READS", "raise SystemExit(1)")
    (finding,) = doctor.peers_memory()
    assert finding.level == "note"
    assert "pelton.empty" in finding.remedy


def test_a_broken_torch_is_a_line_and_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart is gone')")
    outcome = run([*COMMAND, "doctor"], 120, {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(PACKAGES)])})
    assert outcome.code == 1, outcome.errors
    assert "pelton cannot be imported: libcudart is gone" in outcome.output
    assert "open files" in outcome.output  # the others are looked at all the same


def test_a_wire_that_is_missing_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_UCX_LIBRARY", "/nowhere/libucp.so.0")
    (finding,) = doctor.wires()
    assert finding.remedy == "for RDMA: apt-get install libucx0"


def test_rdma_devices_are_listed_with_their_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    monkeypatch.setattr(doctor, "_RDMA", tmp_path)
    monkeypatch.setenv("PELTON_UCX_LIBRARY", "libc.so.6")  # loads
    _, up, down = doctor.wires()
    assert (up.level, down.level) == ("ok", "note")
    assert "mlx5_0, port 1: 4: ACTIVE, 200 Gb/sec" in up.what
    assert "UCX_NET_DEVICES" in down.remedy
    monkeypatch.setenv("PELTON_UCX_LIBRARY", "/nowhere/libucp.so.0")
    assert [finding.level for finding in doctor.wires()] == ["note", "note", "note"]


def test_it_says_what_an_nccl_can() -> None:
    (all_of_it,) = doctor.nccl_can((2, 21, 5), lambda name: True)
    assert "buckets that are registered once" in all_of_it.what
    some, missing = doctor.nccl_can((2, 16, 4), lambda name: name != "ncclCommRegister")
    assert "registered" not in some.what
    assert (missing.level, missing.remedy) == ("note", "NCCL 2.19 or later")


def test_mps_is_there_where_its_control_daemon_listens(tmp_path: Path) -> None:
    assert doctor.mps(tmp_path).level == "note"
    (tmp_path / "control").touch()
    assert doctor.mps(tmp_path).level == "ok"


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pelton {importlib.metadata.version('pelton')}\n"


def _ssh(folder: Path, body: str) -> list[str]:
    program = folder / "ssh"
    program.write_text(f"#!/bin/sh\nhost=$1; shift\n{body}\n")
    program.chmod(0o755)
    return [str(program)]


def test_clocks_of_other_hosts_are_compared(tmp_path: Path) -> None:
    """The stand-in's host `late` is 4 s behind."""
    late = 'if [ $host = late ]; then date() { command date -d "4 seconds ago" "$@"; }; fi; eval "$*"'
    same, behind = doctor.clocks_of(["same", "late"], _ssh(tmp_path, late))
    assert same.level == "ok" and "the clock of same is " in same.what
    assert behind.level == "note" and behind.remedy.startswith("chrony")
    ahead_ms = float(behind.what.split(" is ")[1].split()[0])
    assert -4200 < ahead_ms < -3800, behind.what


def test_a_host_that_cannot_be_asked_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (refused,) = doctor.clocks_of(["far"], _ssh(tmp_path, 'echo "Permission denied (publickey)." >&2; exit 255'))
    assert refused.level == "note" and "the clock of far was not read: Permission denied (publickey)." in refused.what
    assert refused.remedy.endswith("far date")
    (missing,) = doctor.clocks_of(["far"], [str(tmp_path / "none")])
    assert "No such file" in missing.what
    monkeypatch.setattr(doctor, "_LONGEST_S", 0.2)
    (silent,) = doctor.clocks_of(["far"], _ssh(tmp_path, "exec cat > /dev/null"))
    assert "no answer in 0.2 s" in silent.what


def test_the_command_names_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--host_list", "other", "--ssh", *_ssh(tmp_path, 'eval "$*"')]) == 0
    assert "the clock of other is " in capsys.readouterr().out
