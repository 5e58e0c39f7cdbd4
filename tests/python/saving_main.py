"""`saving_main.py new|same`: lets two ranks save, one of which is killed at an operation, for each operation of each.

After each such save two new ranks load: they find checkpoint 1 or checkpoint 2, whole and the same on both, and save
another one. Ranks are forked, since importing torch takes longer than all that they do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pelton.torch_api as bagua
import torch
from pelton._training.checkpoint import _disk
from pelton.errors import PeltonError
from pelton.torch_api.checkpoint import load_checkpoint, save_checkpoint
from saving_faults import Faulty
from torch import nn
from torch._C._distributed_c10d import FileStore

LIMIT_S = 60
MOST_OPERATIONS = 100
KILLED = -signal.SIGKILL
SAVED = 7  # a rank that was to be killed and was not has saved


class State(nn.Module):
    """A number for all ranks, and one for each. Threads: one. Owns: them."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1000,), value))
        self.register_buffer("own", torch.full((1000,), value + bagua.get_rank() / 2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.weight.sum()


def wrapped(value: float) -> State:
    model = State(value)
    model.with_bagua([], "gradient_allreduce")  # type: ignore[operator]
    with torch.no_grad():
        model.get_buffer("own").fill_(value + bagua.get_rank() / 2)  # wrapping has made it rank 0's
    return model


def save(folder: Path, iteration: int, value: float) -> None:
    save_checkpoint(iteration, folder, wrapped(value))


def save_and_die(folder: Path, iteration: int, doomed: int, at: int) -> int:
    """Saves what has the value 2; the doomed rank is killed meanwhile, and the other one learns of it."""
    if bagua.get_rank() != doomed:
        try:
            save(folder, iteration, 2.0)
        except PeltonError:
            return 0
        return SAVED
    faulty = Faulty(at, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with mock.patch.object(_disk, "os", faulty), mock.patch("pelton._training.checkpoint._folders.os", faulty):
        save(folder, iteration, 2.0)
    return SAVED


def check(folder: Path, number: str) -> int:
    """Loads, and saves again; leaves nothing of the job that ended."""
    model = wrapped(9.0)
    iteration = load_checkpoint(folder, model)
    value = float(model.weight[0].detach())
    assert value in (1.0, 2.0), value
    assert iteration == (value if number == "new" else 1), (iteration, value)
    assert model.weight.eq(value).all()
    assert model.get_buffer("own").eq(value + bagua.get_rank() / 2).all()
    everyones = torch.zeros(2)
    bagua.allgather(torch.tensor([value]), everyones)
    assert everyones.eq(value).all(), everyones
    save(folder, 3, 3.0)
    model = wrapped(9.0)
    assert load_checkpoint(folder, model) == 3
    assert model.weight.eq(3.0).all()
    left = {path.name for path in folder.iterdir()}
    assert left <= {"iter_0000001", "iter_0000002", "iter_0000003", "latest_checkpointed_iteration.txt"}, left
    return 0


def _rank(rank: int, store: str, function: Callable[[], int]) -> int:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    signal.alarm(LIMIT_S)
    try:
        files = FileStore(store, 2)
        bagua.init_process_group(files, rank, 2, 2, torch_distributed=False)
        code = function()
    except BaseException:
        traceback.print_exc()
        return 1
    with contextlib.suppress(PeltonError):  # after the loss of a rank there is nobody to leave in good order
        bagua.destroy_process_group()
    return code


def job(function: Callable[[], int]) -> list[int]:
    """Runs it on two ranks; their exit codes, minus the signal's number for one that was killed."""
    with tempfile.TemporaryDirectory() as place:
        children = []
        for rank in (0, 1):
            child = os.fork()
            if child == 0:
                code = _rank(rank, f"{place}/store", function)
                sys.stderr.flush()
                os._exit(code)
            children.append(child)
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def saves_although(number: str, doomed: int, at: int) -> bool:
    """Whether the save had less operations than that, so that nobody died."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def first() -> int:
            save(folder, 1, 1.0)
            return 0

        def second() -> int:
            return save_and_die(folder, 2 if number == "new" else 1, doomed, at)

        assert job(first) == [0, 0]
        codes = job(second)
        has_died = codes[doomed] == KILLED
        assert has_died or codes == [SAVED, SAVED], (doomed, at, codes)
        assert codes[1 - doomed] in (0, SAVED), (doomed, at, codes)
        assert job(lambda: check(folder, number)) == [0, 0], (doomed, at)
        return not has_died


def main() -> None:
    """Says how many operations each rank was killed at."""
    torch.set_num_threads(1)
    for doomed, fewest in ((0, 15), (1, 3)):
        at = 0
        while at < MOST_OPERATIONS and not saves_although(sys.argv[1], doomed, at):
            at += 1
        assert fewest <= at < MOST_OPERATIONS, (doomed, at)
        print(f"rank {doomed}: killed at each of {at} operations")


if __name__ == "__main__":
    main()
