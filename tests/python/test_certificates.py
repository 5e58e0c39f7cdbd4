"""Certificates on the control plane (mTLS), from the environment. What can be wrong: comm/control/tls_test.cc."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from spawn import launcher, run

PROGRAM = """
import torch
import pelton.torch_api as bagua
bagua.init_process_group()
tensor = torch.full((4,), 1.0 + bagua.get_rank())
bagua.allreduce_inplace(tensor)
print(f"sum={tensor[0].item():g}", flush=True)
"""
THROUGH_TORCH = """
import pelton  # without an installed package nothing else makes the name known
import torch
import torch.distributed as dist
dist.init_process_group("pelton")
tensor = torch.full((4,), 1.0 + dist.get_rank())
dist.all_reduce(tensor)
print(f"sum={tensor[0].item():g}", flush=True)
dist.destroy_process_group()
"""
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, str]:
    """The environment of a rank that holds a certificate for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is missing, which makes this test's certificates")
    _openssl(tmp_path, "req", "-x509", *NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=job")
    _openssl(tmp_path, "req", *NEW_KEY, "-keyout", "rank.key", "-out", "rank.csr", "-subj", "/CN=rank")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
    _openssl(tmp_path, "x509", "-req", "-in", "rank.csr", "-out", "rank.pem", *signing)
    names = {"PELTON_TLS_CA": "ca.pem", "PELTON_TLS_CERT": "rank.pem", "PELTON_TLS_KEY": "rank.key"}
    return {variable: str(tmp_path / name) for variable, name in names.items()}


@pytest.mark.parametrize("text", [PROGRAM, THROUGH_TORCH], ids=["torch_api", "torch_distributed"])
def test_ranks_meet_with_certificates(certificates: dict[str, str], tmp_path: Path, text: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(text)
    outcome = run(launcher(2, program), 90, certificates)
    assert sorted(outcome.output.splitlines()) == ["[rank 0] sum=3", "[rank 1] sum=3"], outcome.errors


def test_a_key_that_is_missing_is_named(certificates: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    del certificates["PELTON_TLS_KEY"]
    outcome = run(launcher(1, program), 60, certificates)
    assert outcome.code == 1
    assert "tls.key_path: is missing" in outcome.errors
