"""The table that `tools/bench --tune` writes, from times that are known."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "links"))
from rows import choose, table_of  # type: ignore[import-not-found]

SIZES = [1024, 4096, 16384]


def test_the_fastest_recipe_is_taken_up_to_between_the_sizes() -> None:
    seconds = {"tree": [1.0, 1.0, 9.0], "ring": [3.0, 2.0, 3.0]}
    assert table_of("allreduce", 4, SIZES, seconds) == ["allreduce 4 8192 tree", "allreduce 4 0 ring"]


def test_bytes_are_those_of_a_part_where_the_count_is() -> None:
    seconds = {"tree": [1.0, 9.0, 9.0], "pairwise": [3.0, 2.0, 3.0]}
    assert table_of("gather", 4, SIZES, seconds) == ["gather 4 512 tree", "gather 4 0 pairwise"]


def test_noise_does_not_change_the_recipe() -> None:
    assert choose({"a": [1.0, 1.02, 1.0], "b": [2.0, 1.0, 1.2]}) == ["a", "a", "a"]
    assert choose({"a": [1.0, 1.2, 1.0], "b": [2.0, 1.0, 1.0]}) == ["a", "b", "b"]
