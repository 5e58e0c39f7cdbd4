"""Times torch.distributed over the backends "pelton" and "gloo", in turns in one run.

    tools/bench c10d [--seconds S] [--json FILE]

Every rank has a group of each backend. Operations are called as scripts call them (`dist.all_reduce(tensor)`), and
once more as DDP does, asynchronously with a wait for the future. Printed are medians over all turns, in microseconds,
and of a training step of the 25 MB MLP under DDP, in milliseconds. The rows "alone" call one backend again and again,
each time behind a barrier, so that the other one takes neither caches nor cores in between.

The column "fake" is torch's backend of that name, which moves no byte, so that it shows the least that any backend
takes, and the last ratio what gloo would lose to a backend without a cost.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import pelton  # noqa: F401  (registers the backend)
import torch
import torch.distributed as dist
from models import CASES
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401  (registers the backend "fake")

SIZES = (4 << 10, 1 << 20, 64 << 20)
BACKENDS = ("pelton", "gloo", "fake")
Run = Callable[[], object]


def _all_reduce(group: dist.ProcessGroup, size: int) -> Run:
    tensor = torch.zeros(size // 4)
    return lambda: dist.all_reduce(tensor, group=group)


def _all_reduce_async(group: dist.ProcessGroup, size: int) -> Run:
    tensor = torch.zeros(size // 4)

    def run() -> None:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        work.get_future().wait()

    return run


def _all_gather(group: dist.ProcessGroup, size: int) -> Run:
    whole = torch.zeros(size // 4)
    part = torch.zeros(whole.numel() // group.size())
    return lambda: dist.all_gather_into_tensor(whole, part, group=group)


def _reduce_scatter(group: dist.ProcessGroup, size: int) -> Run:
    whole = torch.zeros(size // 4)
    part = torch.zeros(whole.numel() // group.size())
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def _leaves(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _ddp_step(group: dist.ProcessGroup, _: int) -> Run:
    case = CASES[0]
    torch.manual_seed(0)
    model = DistributedDataParallel(case.model(), process_group=group, gradient_as_bucket_view=True)
    if dist.get_backend(group) == "fake":  # whose futures hold no result, which DDP's own hook needs
        model.register_comm_hook(None, _leaves)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs, targets = case.batch(dist.get_rank())
    loss_function = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_function(model(inputs), targets).backward()
        optimizer.step()

    return step


OPERATIONS: dict[str, Callable[[dist.ProcessGroup, int], Run]] = {
    "all_reduce": _all_reduce,
    "all_reduce, async": _all_reduce_async,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
}


_ALONE = ", alone"


def _text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _time(run: Run, batch: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(batch):
        run()
    return (time.perf_counter() - start) / batch


def _measure(
    make: Callable[[dist.ProcessGroup, int], Run], size: int, groups: dict[str, dist.ProcessGroup], seconds: float
) -> dict[str, float]:
    """Median of the turns by backend. Units: seconds."""
    runs = {name: make(group, size) for name, group in groups.items()}
    batch = 20 if size <= 65536 else 1
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(3):
            run()
    _repeat(seconds, lambda: [times[name].append(_time(run, batch)) for name, run in runs.items()])
    return {name: statistics.median(values) for name, values in times.items()}


def _measure_alone(
    make: Callable[[dist.ProcessGroup, int], Run], size: int, groups: dict[str, dist.ProcessGroup], seconds: float
) -> dict[str, float]:
    """Median of calls behind a barrier each, first of one backend and then of the other. Units: seconds."""
    times: dict[str, list[float]] = {name: [] for name in groups}
    for name, group in groups.items():
        run = make(group, size)
        turn = times[name]
        _repeat(seconds / len(groups), lambda run=run, turn=turn: turn.extend(_time(run, 1) for _ in range(20)))
    return {name: statistics.median(values) for name, values in times.items()}


def _repeat(seconds: float, turn: Run) -> None:
    end = torch.tensor(0.0)
    began = time.perf_counter()
    while end.item() < seconds:
        turn()
        end.fill_(time.perf_counter() - began)
        dist.broadcast(end, 0)  # all ranks take as many turns


def _row(name: str, result: dict[str, float], unit: float) -> str:
    cells = "".join(f"{result[backend] * unit:12.1f}" for backend in BACKENDS)
    gains = "".join(f"{result['gloo'] / result[backend]:10.1f}x" for backend in ("pelton", "fake"))
    return f"{name:34}{cells}{gains}"


def main() -> None:
    """Runs on every rank; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row")
    parser.add_argument("--json", help="where rank 0 writes the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("pelton")
    is_first = dist.get_rank() == 0
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    results: dict[str, dict[str, float]] = {}

    def measure(name: str, make: Callable[[dist.ProcessGroup, int], Run], size: int, unit: float) -> None:
        take = _measure_alone if name.endswith(_ALONE) else _measure
        results[name] = take(make, size, groups, options.seconds)
        if is_first:
            print(_row(name, results[name], unit), flush=True)

    if is_first:
        print(f"{dist.get_world_size()} ranks, medians" + " " * 18 + "".join(f"{b:>12}" for b in BACKENDS))
    for name, make in OPERATIONS.items():
        for size in SIZES:
            measure(f"{name}, {_text(size)}, us", make, size, 1e6)
    for size in SIZES:
        measure(f"all_reduce, {_text(size)}, us{_ALONE}", _all_reduce, size, 1e6)
    measure(f"DDP step, {CASES[0].name}, ms", _ddp_step, 1 << 20, 1e3)
    if is_first and options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
