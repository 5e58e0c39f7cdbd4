"""Trains one net on handwritten digits with every algorithm of Pelton, under PyTorch DDP and in one process.

Started by tools/demo. The training loop is train.py; this file starts it, shows its progress and judges the outcome:
the exit status is not 0 unless every way reaches the accuracy, and those whose ranks take the same steps end with the
same parameters on all of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib
import numpy

matplotlib.use("Agg")
import pelton
from matplotlib import pyplot
from numpy.typing import NDArray
from pelton.torch_api.algorithms import GlobalAlgorithmRegistry
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
LEAST_ACCURACY = 0.95
STEPS_PER_EPOCH = 22
SMOOTHED_STEPS = 5  # in the picture
# A step that takes so many times the mean makes the mean a figure of that step: the machine stood still, or we did.
OUTLIER_FACTOR = 50
# Algorithms in Python whose ranks' weights differ between exchanges; of the runtime's the runtime says so.
OWN_STEPS = ("async", "post_local_sgd", "zero_one_adam")
LIMIT_S = 300


@dataclass(frozen=True)
class Way:
    """One way to train. Threads: a value. Owns: its fields."""

    title: str
    kind: str
    ranks: int
    takes_equal_steps: bool = True


@dataclass(frozen=True)
class Outcome:
    """What came of it. Threads: a value. Owns: its lists.

    Attributes:
      losses: by step, the mean over the ranks.
      longest_step_s: of any rank.
      wait_share: of the time of a step, the mean over the ranks.
      bytes_per_step: sent by a rank, the mean over the ranks.
      distance: how far the ranks' parameters are from their mean, root mean square, relative to the mean's length.
    """

    way: Way
    losses: list[float]
    steps_per_s: float
    longest_step_s: float
    wait_share: float
    bytes_per_step: float
    accuracy: float
    distance: float

    @property
    def has_outlier(self) -> bool:
        """Whether one step was so long that steps_per_s says little of the others."""
        return self.longest_step_s * self.steps_per_s > OUTLIER_FACTOR

    @property
    def is_good(self) -> bool:
        """Whether it did what it should."""
        agrees = self.distance == 0 or not self.way.takes_equal_steps
        return agrees and self.accuracy >= LEAST_ACCURACY


def takes_equal_steps(name: str) -> bool:
    """Whether all ranks hold the same weights after each step. Weights themselves are exchanged now and then only."""
    subjects = {one.name: one.subject for one in pelton.algorithms()}
    return name not in OWN_STEPS and not subjects[name].startswith("weights")


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
    parameters = numpy.stack([numpy.load(folder / f"rank{rank}.npy") for rank in range(way.ranks)])
    return Outcome(
        way,
        losses=[fmean(losses) for losses in zip(*(figures["losses"] for figures in ranks), strict=True)],
        steps_per_s=fmean(figures["steps_per_s"] for figures in ranks),
        longest_step_s=max(figures["longest_step_s"] for figures in ranks),
        wait_share=fmean(figures["wait_share"] for figures in ranks),
        bytes_per_step=fmean(figures["bytes_per_step"] for figures in ranks),
        accuracy=min(figures["accuracy"] for figures in ranks),
        distance=consensus_distance(parameters),
    )


def consensus_distance(parameters: NDArray[numpy.float32]) -> float:
    """0 if and only if all ranks hold the same bits.

    Shape: parameters [ranks, count].
    """
    if (parameters == parameters[0]).all():
        return 0.0
    mean = parameters.mean(axis=0, dtype=numpy.float64)
    squares = ((parameters - mean) ** 2).sum(axis=1)
    return float(numpy.sqrt(squares.mean()) / numpy.linalg.norm(mean))


def show(outcomes: list[Outcome], console: Console) -> None:
    """Prints the table."""
    table = Table(title="Handwritten digits, the same batches of 64 in each way")
    for heading in ("", "ranks", "steps/s", "longest", "waiting", "KB/step", "accuracy", "apart"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for outcome in outcomes:
        parallel = outcome.way.ranks > 1
        table.add_row(
            outcome.way.title,
            str(outcome.way.ranks),
            f"{outcome.steps_per_s:.1f}" + ("*" if outcome.has_outlier else ""),
            f"{outcome.longest_step_s * 1e3:.0f} ms",
            f"{outcome.wait_share:.1%}" if parallel else "-",
            f"{outcome.bytes_per_step / 1e3:.0f}" if parallel else "-",
            f"{outcome.accuracy:.3f}" + ("" if outcome.accuracy >= LEAST_ACCURACY else " (too low)"),
            _apart(outcome) if parallel else "-",
        )
    console.print(table)
    print(
        "Waiting for communication, as each runtime measures it itself: the share of a step's time between the last\n"
        "gradient and the end of communication. KB/step: what a rank sends in the best schedule of its operations\n"
        "(for DDP an allreduce). Accuracy is on the test set, that of the worst rank. Apart: how far the ranks'\n"
        "parameters are from their mean, as a share of its length; 0 is bit by bit. Longest: the longest step of any\n"
        f"rank; * marks steps/s that one step of more than {OUTLIER_FACTOR} times the mean has spoilt.\n"
        f"Each rank computes with one thread; this machine has {os.cpu_count()} cores."
    )


def _apart(outcome: Outcome) -> str:
    is_wrong = outcome.distance > 0 and outcome.way.takes_equal_steps
    return "0" if outcome.distance == 0 else f"{outcome.distance:.1e}" + (" (must be 0)" if is_wrong else "")


def draw(outcomes: list[Outcome], path: Path) -> None:
    """Writes the loss curves as a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(12, 6), layout="constrained")
    for outcome, style in zip(outcomes, itertools.cycle(("-", "--", ":", "-."))):
        smooth = numpy.convolve(outcome.losses, numpy.full(SMOOTHED_STEPS, 1 / SMOOTHED_STEPS), "valid")
        axes.plot(smooth, style, linewidth=1, label=f"{outcome.way.title} ({outcome.steps_per_s:.0f} steps/s)")
    axes.set(xlabel="step", ylabel="training loss, mean over the ranks", yscale="log", title="Handwritten digits")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small")  # beside the curves, not on them
    figure.savefig(path, dpi=120)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="tools/demo", description="Trains with every algorithm and compares them.")
    parser.add_argument("-np", "--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--picture", type=Path, default=ROOT / "out" / "demo.png")
    parser.add_argument("--algorithms", nargs="*", default=GlobalAlgorithmRegistry.available_algorithms())
    options = parser.parse_args()
    ways = [Way("one process", "single", 1), Way("PyTorch DDP (gloo)", "ddp", options.ranks)]
    ways += [Way(f"Pelton {name}", name, options.ranks, takes_equal_steps(name)) for name in options.algorithms]
    console = Console(width=None if sys.stdout.isatty() else 120)
    columns = (TextColumn("{task.description:34}"), BarColumn(), TextColumn("{task.fields[loss]}"), TimeElapsedColumn())
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
