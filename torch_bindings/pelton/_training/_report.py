"""The lines that rank 0 says at a job's start, for each model, and at its end."""

from __future__ import annotations

import time
from typing import Any

from pelton._log import announce
from pelton._training import env
from pelton._training.algorithms.base import AlgorithmImpl, RuntimeImpl

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def size_of(count: float) -> str:
    """A number of bytes for people: "3.4 MB"."""
    unit = 0
    while count >= 1000 and unit + 1 < len(_UNITS):
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {_UNITS[unit]}"


def _name_of(algorithm: AlgorithmImpl) -> str:
    """The runtime's name of an algorithm, or the class of one that is written in Python."""
    if isinstance(algorithm, RuntimeImpl):
        return algorithm.runtime_name
    return type(algorithm).__name__.removesuffix("Impl")


class Report:
    """What is said of one job. Threads: the main thread. Owns: when the job began."""

    def __init__(self, rank: int, hosts: list[int]) -> None:
        """Args:
        rank: this process's; only rank 0 says anything.
        hosts: for each rank the lowest rank on its host.
        """
        self._is_speaker = rank == 0
        self._began = time.monotonic()
        count = len(set(hosts))
        wires = "shared memory" if count == 1 else f"shared memory and {env.wire()}"
        self._say(f"{len(hosts)} rank(s) on {count} host(s), over {wires}")

    def add_model(self, model: Any) -> None:
        """Says how a model that was wrapped is communicated."""
        sizes = [parameter.numel() * parameter.element_size() for _, parameter in model.bagua_build_params()]
        self._say(
            f"model '{model.bagua_module_name}': {_name_of(model.bagua_algorithm)}, {len(sizes)} tensors of "
            f"{size_of(sum(sizes))} in {len(model.bagua_buckets)} bucket(s)"
        )

    def end(self, models: list[Any]) -> None:
        """Says how long the job took, and of each model how much of that was waiting."""
        seconds = time.monotonic() - self._began
        lines = [f"the job took {seconds:.1f} s"]
        for model in models:
            counts = model.statistics()
            if counts.get("rounds"):
                lines.append(
                    f"model '{model.bagua_module_name}': {counts['rounds']:.0f} rounds, {counts['wait_seconds']:.1f} s "
                    f"waited, {size_of(counts.get('sent_bytes', 0.0))} sent by this rank"
                )
        self._say("; ".join(lines))

    def _say(self, line: str) -> None:
        if self._is_speaker:
            announce(line)
