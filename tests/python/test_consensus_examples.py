"""examples/consensus under the alias package: every style over every topology, every method on every problem."""

from __future__ import annotations

import re
import sys

from spawn import HERE, run

FOLDER = HERE.parents[1] / "examples" / "consensus"
_LINE = re.compile(r"^\[rank (\d)\] rank \1: (\S+), (\S+): (\S+) from the", re.MULTILINE)


def errors_of(script: str, *words: str) -> dict[tuple[str, str], float]:
    """The worst rank's, of each pair of words."""
    command = [sys.executable, "-m", "pelton_run.bfrun", "-np", "4", sys.executable, "-m", "pelton.compat"]
    outcome = run([*command, str(FOLDER / script), *words], 300)
    assert outcome.code == 0, outcome.errors
    found: dict[tuple[str, str], list[float]] = {}
    for _, first, second, error in _LINE.findall(outcome.output):
        found.setdefault((first, second), []).append(float(error))
    assert found and all(len(errors) == 4 for errors in found.values()), outcome.output
    return {key: max(errors) for key, errors in found.items()}


def test_every_rank_has_the_mean() -> None:
    topologies = ("expo2", "expo3", "ring", "mesh", "star", "full")
    styles = ("static", "one-peer", "push-sum")
    errors = errors_of("average.py", "--topology", *topologies, "--style", *styles)
    assert sorted(errors) == sorted((topology, style) for topology in topologies for style in styles)
    assert all(error < 1e-9 for error in errors.values()), errors


def test_every_method_comes_to_the_optimum_or_near_it() -> None:
    methods = ("diffusion", "exact-diffusion", "gradient-tracking", "push-diging")
    errors = errors_of("regression.py", "--method", *methods, "--problem", "linear", "logistic")
    assert len(errors) == 8
    for (_, method), error in errors.items():
        assert 1e-6 < error < 0.5 if method == "diffusion" else error < 1e-6, errors
