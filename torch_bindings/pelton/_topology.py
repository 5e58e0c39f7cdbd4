"""`pelton topology`: what a graph over ranks costs and how fast it mixes, as figures and as a picture."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pelton import _C
from pelton._algorithms import OptionDescription, option_line
from pelton.errors import PeltonError

_MOST_STEPS_DRAWN = 8
_STEPS_OF_ONE_THAT_NEVER_REPEATS = 64
_SIDE = 220  # of the square of one step. Units: pixels
_EXACT = 1e-12


@dataclass(frozen=True)
class Figures:
    """What a graph, or one period of several, is like. Threads: a value. Owns: nothing."""

    size: int
    period: int  # 0: it never repeats, and the figures are of its first steps
    sources: tuple[int, int]  # that a rank has in a step, the fewest and the most
    spectral_gap: float  # by step: the error becomes about 1 - gap of what it was; 1: exact within a period
    is_exact: bool  # all ranks hold the exact mean after a period
    keeps_mean: bool


def figures_of(graphs: _C.Graphs) -> Figures:
    """Looks at all graphs of a period. Takes a time of size**3 for each."""
    product = torch.eye(graphs.size, dtype=torch.float64)
    counts: list[int] = []
    keeps_mean = True
    steps = graphs.period or _STEPS_OF_ONE_THAT_NEVER_REPEATS
    for step in range(steps):
        own, edges = graphs.at(step)
        weights = torch.diag(torch.tensor(own, dtype=torch.float64))
        of_rank = [0] * graphs.size
        for source, target, weight in edges:
            weights[source, target] = weight
            of_rank[target] += 1
        counts += of_rank
        keeps_mean = keeps_mean and bool((weights.sum(1) - 1).abs().max() < _EXACT)
        product = product @ weights
    is_exact = bool((product - 1 / graphs.size).abs().max() < _EXACT)
    moduli = sorted(torch.linalg.eigvals(product).abs().tolist(), reverse=True)
    rest = moduli[1] if len(moduli) > 1 and not is_exact else 0.0
    gap = max(0.0, 1 - rest ** (1 / steps))
    return Figures(graphs.size, graphs.period, (min(counts), max(counts)), gap, is_exact, keeps_mean)


def svg_of(graphs: _C.Graphs) -> str:
    """A picture of the first steps, side by side: ranks on a circle, and an arrow for each edge."""
    steps = min(graphs.period or _MOST_STEPS_DRAWN, _MOST_STEPS_DRAWN)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_SIDE * steps}" height="{_SIDE + 20}" '
        'font-family="sans-serif" font-size="11">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#369"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for step in range(steps):
        parts.append(f'<g transform="translate({_SIDE * step},0)">')
        parts += _drawn(graphs, step)
        parts.append(f'<text x="{_SIDE // 2}" y="{_SIDE + 12}" text-anchor="middle">step {step}</text></g>')
    return "\n".join([*parts, "</svg>", ""])


def _drawn(graphs: _C.Graphs, step: int) -> list[str]:
    radius = max(3.0, min(10.0, 150 / graphs.size))
    places = []
    for rank in range(graphs.size):
        angle = 2 * math.pi * rank / graphs.size - math.pi / 2
        places.append((_SIDE / 2 + 0.42 * _SIDE * math.cos(angle), _SIDE / 2 + 0.42 * _SIDE * math.sin(angle)))
    parts = []
    for source, target, weight in graphs.at(step)[1]:
        (x1, y1), (x2, y2) = places[source], places[target]
        length = math.hypot(x2 - x1, y2 - y1)
        dx, dy = (x2 - x1) / length * radius, (y2 - y1) / length * radius
        parts.append(
            f'<line x1="{x1 + dx:.1f}" y1="{y1 + dy:.1f}" x2="{x2 - dx:.1f}" y2="{y2 - dy:.1f}" stroke="#369" '
            f'stroke-width="{0.5 + 2 * abs(weight):.2f}" stroke-opacity="0.6" marker-end="url(#arrow)"/>'
        )
    for rank, (x, y) in enumerate(places):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#fff" stroke="#333"/>')
        if radius >= 6:
            parts.append(f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{rank}</text>')
    return parts


_COLUMNS = f"{'graph':<24} {'ranks':>5} {'period':>6} {'sources':>8} {'gap a step':>10}  mean after a period"


def _row(name: str, figures: Figures) -> str:
    fewest, most = figures.sources
    sources = str(most) if fewest == most else f"{fewest} to {most}"
    mean = "exact" if figures.is_exact else "kept, approached" if figures.keeps_mean else "not kept"
    period = str(figures.period or "none")
    return f"{name:<24} {figures.size:>5} {period:>6} {sources:>8} {figures.spectral_gap:>10.4f}  {mean}"


def _options(words: Sequence[str]) -> dict[str, str]:
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise SystemExit(f"pelton topology: option {word!r}: must be NAME=VALUE")
        options[name] = value
    return options


def main(words: Sequence[str]) -> int:
    """Prints a row for each graph, or for one; 1 where there is no such graph."""
    parser = argparse.ArgumentParser(prog="pelton topology", description=__doc__)
    parser.add_argument("name", nargs="?", help="one graph; all of them without")
    parser.add_argument("options", nargs="*", metavar="NAME=VALUE", help="options of that graph")
    parser.add_argument("-n", "--ranks", type=int, default=16)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it there")
    given = parser.parse_args(words)
    if given.svg is not None and given.name is None:
        parser.error("--svg draws one graph; name it")
    known = _C.graphs()
    names = [given.name] if given.name is not None else [name for name, _, _ in known]
    print(_COLUMNS)
    for name in names:
        try:
            graphs = _C.make_graphs(name, given.ranks, _options(given.options))
        except PeltonError as error:
            if given.name is not None:
                print(f"pelton topology: {error}", file=sys.stderr)
                return 1
            print(f"{name:<24} needs options: {error}")
            continue
        print(_row(name, figures_of(graphs)))
        if given.svg is not None:
            given.svg.write_text(svg_of(graphs))
    for name, summary, options in known:
        if name == given.name:
            print(f"{summary}")
            for option in options:
                print(option_line(OptionDescription(*option)))
    return 0
