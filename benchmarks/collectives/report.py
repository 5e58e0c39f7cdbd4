"""The figures of a comparison as a table and as a picture."""

from __future__ import annotations

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Figures = dict[tuple[str, int, str], float]  # seconds by (operation, bytes, side)


def name_of(size: int) -> str:
    """The size as people say it."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1 << 10 else f"{size} B"


def _operations(figures: Figures) -> list[str]:
    return list(dict.fromkeys(operation for operation, _, _ in figures))


def _sizes(figures: Figures) -> list[int]:
    return sorted({size for _, size, _ in figures})


def print_table(title: str, figures: Figures, peer: str = "gloo") -> None:
    """Microseconds of both sides, and how many times faster Pelton is."""
    sizes = _sizes(figures)
    print(f"\n{title}: median microseconds, pelton / {peer} (times faster)")
    print("| operation | " + " | ".join(map(name_of, sizes)) + " |\n" + "| --- " * (len(sizes) + 1) + "|")
    for operation in _operations(figures):
        cells = []
        for size in sizes:
            ours, theirs = figures.get((operation, size, "pelton")), figures.get((operation, size, peer))
            both = ours is not None and theirs is not None
            cells.append(f"{ours * 1e6:.0f} / {theirs * 1e6:.0f} ({theirs / ours:.1f}x)" if both else "-")
        print(f"| {operation} | " + " | ".join(cells) + " |", flush=True)


def draw(title: str, figures: Figures, path: pathlib.Path) -> None:
    """One panel per operation: seconds over bytes, a line per side."""
    names = _operations(figures)
    columns = min(len(names), 4)
    rows = (len(names) + columns - 1) // columns
    figure, axes = plt.subplots(rows, columns, figsize=(3.2 * columns, 2.6 * rows), squeeze=False, sharex=True)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, operation in zip(axes.flat, names, strict=False):
        for side in dict.fromkeys(side for _, _, side in figures):
            points = [
                (size, figures[operation, size, side]) for size in _sizes(figures) if (operation, size, side) in figures
            ]
            axis.loglog(*zip(*points, strict=True), marker="o", label=side)
        axis.set_title(operation)
        axis.grid(which="both", alpha=0.2)
    axes.flat[0].legend()
    figure.supxlabel("bytes")
    figure.supylabel("seconds")
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
