"""Jobs of two ranks of which one forks: `forks.py NAME RESULTS_FOLDER`, one scenario a job."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pelton
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from pelton.distributed import Store
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cases.checks import batch, square_loss, wrap

LATE_S = 90.0
Report = dict[str, Any]


def _end_by_exit() -> None:
    sys.exit(0)


def _end_by_exception() -> None:
    raise KeyError("planted")


def _end_by_kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _end_at_once() -> None:
    os._exit(0)


def _end_after_letting_go() -> None:
    """As a script that cleans up: nothing of it is said to anybody."""
    bagua.destroy_process_group()
    dist.destroy_process_group()
    sys.exit(0)


def _ended(child: int) -> float:
    """Waits for a child. Returns the seconds that took; negative if it did not end."""
    start = time.monotonic()
    while time.monotonic() < start + LATE_S:
        if os.waitpid(child, os.WNOHANG)[0] == child:
            return time.monotonic() - start
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1.0


def _works() -> tuple[Any, Callable[[], None]]:
    """A wrapped model, and a step through every way of communicating that there is."""
    group = bagua.new_group()
    model = wrap(nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)))

    def step() -> None:
        square_loss(model, batch(bagua.get_rank(), 0, 4, 6)).backward()
        bagua.barrier(group.get_global_communicator())
        dist.all_reduce(torch.ones(1000))

    return model, step


def _child_ends(how: Callable[[], None]) -> Report:
    _, step = _works()
    step()
    seconds = 0.0
    if bagua.get_rank() == 1:
        child = os.fork()
        if child == 0:
            how()
        seconds = _ended(child)
    for _ in range(3):
        step()
    return {"seconds": seconds}


def child_exits() -> Report:
    """By sys.exit, so that Python's exit handlers run."""
    return _child_ends(_end_by_exit)


def child_fails() -> Report:
    """By an exception that nobody catches."""
    return _child_ends(_end_by_exception)


def child_is_killed() -> Report:
    """By SIGKILL."""
    return _child_ends(_end_by_kill)


def child_ends_at_once() -> Report:
    """By os._exit, as multiprocessing's children do."""
    return _child_ends(_end_at_once)


def child_lets_go() -> Report:
    """It destroys its process groups first."""
    return _child_ends(_end_after_letting_go)


def _refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def child_communicates() -> Report:
    """Everything that only a rank can do is refused, at once."""
    model, step = _works()
    step()
    texts: list[str] = []
    if bagua.get_rank() == 1:
        communicator = bagua.communication._get_default_group().get_global_communicator()
        inputs, ours = torch.ones(4), pelton.empty(1 << 16)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            calls = [
                bagua.barrier,
                lambda: communicator.allreduce(inputs, inputs, 0),
                bagua.init_process_group,
                lambda: square_loss(model, batch(0, 0, 4, 6)).backward(),
                lambda: dist.all_reduce(inputs),
                lambda: dist.barrier(),
                Store,
            ]
            os.write(writing, json.dumps([_refusal(call) for call in calls]).encode())
            # Evaluation goes on, and memory that is asked for here is not the parent's.
            model.eval()(inputs.new_ones(4, 6))
            pelton.empty(1 << 16).fill_(7)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            texts = json.loads(pipe.read())
        ours.fill_(3)
        assert _ended(child) >= 0
        theirs = pelton.empty(1 << 16)
        assert float(ours.sum()) == 3 * ours.numel() and theirs.data_ptr() != ours.data_ptr()
    step()
    return {"texts": texts}


class Squares(Dataset[torch.Tensor]):
    """Six numbers an item. Threads: a value. Owns: nothing."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((6,), float(index))


def _trains_beside_workers(context: str) -> Report:
    _, step = _works()
    model = wrap(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = 0
    for _ in range(2):
        for inputs in DataLoader(Squares(), 4, num_workers=2, multiprocessing_context=context):
            optimizer.zero_grad()
            square_loss(model, inputs).backward()
            optimizer.step()
            batches += 1
    step()
    return {"batches": batches}


def workers_by_fork() -> Report:
    """A DataLoader whose workers are forked anew in each epoch."""
    return _trains_beside_workers("fork")


def workers_by_spawn() -> Report:
    """A DataLoader whose workers are new processes."""
    return _trains_beside_workers("spawn")


def child_writes_to_gradients() -> Report:
    """To those born in shared memory and to those in buckets; it also lets go of them and makes new ones."""
    model = wrap(nn.Sequential(nn.Linear(6, 1 << 13), nn.Tanh(), nn.Linear(1 << 13, 3)))
    inputs = batch(bagua.get_rank(), 0, 4, 6)
    square_loss(model, inputs).backward()
    before = [torch.clone(parameter.grad) for parameter in model.parameters()]
    seconds = 0.0
    if bagua.get_rank() == 1:
        child = os.fork()
        if child == 0:
            for parameter in model.parameters():
                parameter.grad.fill_(7.0)
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            os._exit(0)
        seconds = _ended(child)
    bagua.barrier()
    kept = all(map(torch.equal, before, (parameter.grad for parameter in model.parameters())))
    model.zero_grad()
    square_loss(model, inputs).backward()
    repeated = all(map(torch.equal, before, (parameter.grad for parameter in model.parameters())))
    return {"seconds": seconds, "kept": kept, "repeated": repeated}


def killed_beside_its_children() -> Report:
    """Rank 1 dies; a child that it forked lives on, with all that it has inherited."""
    died = Path(sys.argv[2]) / "died"
    bagua.barrier()
    if bagua.get_rank() == 1:
        if os.fork() == 0:
            time.sleep(LATE_S)  # the launcher ends it with the job
            os._exit(0)
        died.write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            bagua.barrier()
    except Exception as error:
        now = time.monotonic()  # one clock for all processes of a machine
        return {"type": type(error).__name__, "text": str(error), "seconds": now - float(died.read_text())}


def main() -> None:
    """Runs the scenario on this rank."""
    name, path = sys.argv[1:3]
    rank = bagua.get_rank()
    if name == "killed_beside_its_children":
        os.environ["PELTON_HOST_LABEL"] = f"host {rank}"
    bagua.init_process_group()
    report = globals()[name]()
    (Path(path) / f"{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
