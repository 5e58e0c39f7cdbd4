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
