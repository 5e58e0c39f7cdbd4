"""PyTorch's own tests of torch.distributed, with Pelton in gloo's seat; see torch_distributed_main.py."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

import pytest
from spawn import HERE, run

# A part that takes seconds: of every operation one, and what once went wrong. PELTON_LONG runs all.
CHOSEN = (
    "test_DistributedDataParallelCPU",
    "test_all_gather",
    "test_all_gather_coalesced_simple",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_sum_async",
    "test_barrier_timeout_global",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast",
    "test_ddp_logging_data_cpu",
    "test_gather",
    "test_get_future",
    "test_isend_torch_profiler",
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_reduce_max",
    "test_scatter",
    "test_scatter_object_list",
    "test_send_recv_with_tag_autograd_profiler",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
)


def _results(folder: Path, names: tuple[str, ...], on_pelton: bool, limit_s: float) -> dict[str, dict[str, str]]:
    """What became of each test."""
    path = folder / ("pelton" if on_pelton else "gloo")
    changes = {"PELTON_REPLACE_GLOO": "1" if on_pelton else "0", "PELTON_QUIET": "0"}
    command = [sys.executable, str(HERE / "torch_distributed_main.py"), str(path), *names]
    outcome = run(command, limit_s, changes)
    assert outcome.code == 0, outcome.errors
    assert ("gloo run on Pelton" in outcome.errors) == on_pelton, outcome.errors
    return {entry["name"]: entry for entry in map(json.loads, path.read_text().splitlines())}


@functools.cache
def _chosen(folder: Path) -> dict[str, dict[str, str]]:
    return _results(folder, CHOSEN, on_pelton=True, limit_s=240)


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    entry = _chosen(tmp_path_factory.getbasetemp())[name]
    assert entry["outcome"] == "passed", entry["why"]


@pytest.mark.skipif("PELTON_LONG" not in os.environ, reason="takes minutes: tools/test --long runs it")
def test_what_passes_on_gloo_passes_on_pelton(tmp_path: Path) -> None:
    on_gloo = _results(tmp_path, (), on_pelton=False, limit_s=1200)
    names = tuple(name for name, entry in on_gloo.items() if entry["outcome"] == "passed")
    assert len(names) > 80  # otherwise it is the tests that cannot run here
    on_pelton = _results(tmp_path, names, on_pelton=True, limit_s=1800)
    failed = {name: entry["why"] for name, entry in on_pelton.items() if entry["outcome"] != "passed"}
    assert not failed, "\n".join(f"{name}:\n{why}" for name, why in failed.items())
