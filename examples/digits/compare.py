"""Trains one net on handwritten digits in three ways and compares them: Pelton, PyTorch DDP and one process.

Started by tools/demo. The training loop is train.py; this file starts it, shows its progress and judges the outcome:
the exit status is not 0 unless every way reaches the accuracy and ends with the same parameters on all of its ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
LEAST_ACCURACY = 0.95
STEPS_PER_EPOCH = 22
LIMIT_S = 300


@dataclass(frozen=True)
class Way:
    """One way to train. Threads: a value. Owns: its fields."""

    title: str
    kind: str
    ranks: int


@dataclass(frozen=True)
class Outcome:
    """What came of it. Threads: a value. Owns: its lists.

    Attributes:
      losses: by step, the mean over the ranks.
      wait_share: of the time of a step, the mean over the ranks.
      identical: all ranks hold the same bits.
    """

    way: Way
    losses: list[float]
    steps_per_s: float
    wait_share: float
    accuracy: float
    identical: bool

    @property
    def is_good(self) -> bool:
        """Whether it did what it should."""
        return self.identical and self.accuracy >= LEAST_ACCURACY


def train(way: Way, epochs: int, progress: Progress) -> Outcome:
    """Starts the ranks and waits for them.

    Raises:
      RuntimeError: a rank failed; the text is what the ranks said.
    """
    task = progress.add_task(way.title, total=epochs * STEPS_PER_EPOCH, loss="")
    with tempfile.TemporaryDirectory(prefix="pelton-demo-") as folder:
        script = [str(FOLDER / "train.py"), "--kind", way.kind, "--epochs", str(epochs), "--out", folder]
        command = ["timeout", str(LIMIT_S), sys.executable, "-m", "pelton_run", "-np", str(way.ranks), *script]
        said: list[str] = []
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                text = line.removeprefix("[rank 0] ")
                if text.startswith('{"step"'):
                    report = json.loads(text)
                    progress.update(task, completed=report["step"], loss=f"loss {report['loss']:.4f}")
                else:
                    said.append(line)
        if process.returncode != 0:
            raise RuntimeError(f"{way.title} ended with status {process.returncode}:\n{''.join(said[-40:])}")
        return read_outcome(way, Path(folder))


def read_outcome(way: Way, folder: Path) -> Outcome:
    """Puts the ranks' figures together."""
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(way.ranks)]
    return Outcome(
        way,
        losses=[fmean(losses) for losses in zip(*(figures["losses"] for figures in ranks), strict=True)],
        steps_per_s=fmean(figures["steps_per_s"] for figures in ranks),
        wait_share=fmean(figures["wait_share"] for figures in ranks),
        accuracy=min(figures["accuracy"] for figures in ranks),
        identical=len({figures["parameters"] for figures in ranks}) == 1,
    )


def show(outcomes: list[Outcome], console: Console) -> None:
    """Prints the table."""
    table = Table(title="Handwritten digits, the same batches of 64 in each way")
    for heading in ("", "ranks", "steps/s", "waiting", "accuracy", "parameters"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for outcome in outcomes:
        parallel = outcome.way.ranks > 1
        table.add_row(
            outcome.way.title,
            str(outcome.way.ranks),
            f"{outcome.steps_per_s:.1f}",
            f"{outcome.wait_share:.1%}" if parallel else "-",
            f"{outcome.accuracy:.3f}" + ("" if outcome.accuracy >= LEAST_ACCURACY else " (too low)"),
            ("bit-identical" if outcome.identical else "DIFFER") if parallel else "-",
        )
    console.print(table)
    print(
        "Waiting for communication, as each runtime measures it itself: the share of a step's time between the last\n"
        "gradient and the end of communication. Accuracy is on the test set; parameters are compared over all ranks.\n"
        f"Each rank computes with one thread; this machine has {os.cpu_count()} cores."
    )


def draw(outcomes: list[Outcome], path: Path) -> None:
    """Writes the loss curves as a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for outcome, style in zip(outcomes, ("-", "--", ":"), strict=False):
        axes.plot(outcome.losses, style, label=f"{outcome.way.title} ({outcome.steps_per_s:.0f} steps/s)")
    axes.set(xlabel="step", ylabel="training loss, mean over the ranks", yscale="log", title="Handwritten digits")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="tools/demo", description="Trains in three ways and compares them.")
    parser.add_argument("-np", "--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--picture", type=Path, default=ROOT / "out" / "demo.png")
    options = parser.parse_args()
    ways = [
        Way("Pelton", "pelton", options.ranks),
        Way("PyTorch DDP (gloo)", "ddp", options.ranks),
        Way("one process", "single", 1),
    ]
    console = Console()
    columns = (TextColumn("{task.description:20}"), BarColumn(), TextColumn("{task.fields[loss]}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as progress:
            outcomes = [train(way, options.epochs, progress) for way in ways]
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    show(outcomes, console)
    draw(outcomes, options.picture)
    console.print(f"Loss curves: {options.picture}")
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
