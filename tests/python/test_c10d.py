"""torch.distributed over Pelton; see cases/c10d_collectives.py and cases/c10d_edges.py."""

import functools

import pytest
from spawn import Outcome, case_ids, check_case, check_outcome, run_modules

MODULES = ("cases.c10d_collectives", "cases.c10d_edges")
CASES = [(module, size, name) for module in MODULES for size, name in sorted(case_ids(module))]
# One rank on each host, whose messages and collectives go over one wire, and two on each.
LAYOUTS = ((2, 1), (3, 1), (4, 2))


@pytest.mark.parametrize(("module", "world_size", "name"), CASES)
def test_collectives(module: str, world_size: int, name: str) -> None:
    check_case(module, world_size, name)


@functools.cache
def _outcome(world_size: int, ranks_per_host: int) -> Outcome:
    return run_modules(world_size, MODULES, changes={"PELTON_TEST_RANKS_PER_HOST": str(ranks_per_host)})


@pytest.mark.parametrize(
    ("module", "world_size", "ranks_per_host", "name"),
    [(module, size, per_host, name) for size, per_host in LAYOUTS for module, cases, name in CASES if cases == size],
)
def test_collectives_between_hosts(module: str, world_size: int, ranks_per_host: int, name: str) -> None:
    check_outcome(_outcome(world_size, ranks_per_host), module, world_size, name)
