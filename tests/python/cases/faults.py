"""Jobs in which something goes wrong: `faults.py NAME RESULTS_FOLDER`, one scenario a job.

A rank that survives writes down what it was told, and how long that took.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

import pelton
import pelton.bluefog.torch as bf
import pelton.torch_api as bagua
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cases.checks import batch, square_loss, wrap

TIMEOUT_S = 4.0
LATE_S = 60.0
STILL_S = 5.0
Report = dict[str, str | float]


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def _until_error(step: Callable[[], None]) -> Report:
    """Repeats a step until it fails, and says how."""
    end = time.monotonic() + LATE_S
    while time.monotonic() < end:
        start = time.monotonic()
        try:
            step()
        except Exception as error:
            return {
                "type": type(error).__name__,
                "bases": " ".join(c.__name__ for c in type(error).__mro__),
                "text": str(error),
                "seconds": time.monotonic() - start,
            }
    raise AssertionError("no error came")


def _model() -> Any:
    return wrap(nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)))


def killed_in_an_allreduce() -> Report:
    """Rank 1 dies while the operation is under way: the others have begun and cannot go on without it."""
    tensor = torch.ones(1 << 20)
    for _ in range(3):
        bagua.allreduce_inplace(tensor)
    if bagua.get_rank() == 1:
        time.sleep(0.3)
        _die()
    return _until_error(lambda: bagua.allreduce_inplace(tensor))


def killed_in_a_backward() -> Report:
    """Rank 1 dies in the middle of backward, when its last layer's gradient is on its way already."""
    model = _model()
    rank = bagua.get_rank()
    square_loss(model, batch(rank, 0, 4, 6)).backward()
    if rank == 1:
        model[1].register_full_backward_hook(lambda *_: _die())
    return _until_error(lambda: square_loss(model, batch(rank, 1, 4, 6)).backward())


def never_does_backward() -> Report:
    """Rank 1 is alive and idle: only the deadline can end it."""
    model = _model()
    rank = bagua.get_rank()
    square_loss(model, batch(rank, 0, 4, 6)).backward()
    if rank == 1:
        time.sleep(2.5 * TIMEOUT_S)
        return {}
    return _until_error(lambda: square_loss(model, batch(rank, 1, 4, 6)).backward())


def exits_early() -> Report:
    """Rank 1 ends without a word."""
    if bagua.get_rank() == 1:
        os._exit(0)
    return _until_error(bagua.barrier)


def leaves_early() -> Report:
    """Rank 1 says goodbye while the others still want something of it."""
    if bagua.get_rank() == 1:
        bagua.destroy_process_group()
        return {}
    return _until_error(bagua.barrier)


def ends_by_an_error() -> Report:
    """Rank 1's script fails; Python's exit does the rest."""
    if bagua.get_rank() == 1:
        raise KeyError("planted")
    return _until_error(bagua.barrier)


def coordinator_is_killed() -> Report:
    """Rank 0 serves the coordinator."""
    bagua.barrier()
    if bagua.get_rank() == 0:
        time.sleep(0.2)
        _die()
    return _until_error(bagua.barrier)


def trains_until_killed() -> Report:
    """Everybody trains, with gradients born in shared memory and in buckets, and says so after some steps."""
    pelton.set_gradient_allocator(True)
    model = wrap(nn.Sequential(nn.Linear(6, 1 << 14), nn.Tanh(), nn.Linear(1 << 14, 3)))
    rank, end = bagua.get_rank(), time.monotonic() + LATE_S
    for step in itertools.count():
        square_loss(model, batch(rank, step, 4, 6)).backward()
        if step == 3:
            print("training", flush=True)
        if time.monotonic() > end:
            return {}
    raise AssertionError("unreachable")


def killed_in_a_torch_allreduce() -> Report:
    """As killed_in_an_allreduce, asynchronously through torch.distributed."""
    tensor = torch.ones(1 << 20)
    for _ in range(3):
        dist.all_reduce(tensor)
    if dist.get_rank() == 1:
        time.sleep(0.3)
        _die()
    return _until_error(lambda: cast(Any, dist.all_reduce(tensor, async_op=True)).wait())


def killed_under_ddp() -> Report:
    """PyTorch's own DDP waits for the futures of its buckets: they carry the news."""
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3))
    wrapped = DistributedDataParallel(model)
    square_loss(wrapped, batch(rank, 0, 4, 6)).backward()
    if rank == 1:
        model[1].register_full_backward_hook(lambda *_: _die())
    return _until_error(lambda: square_loss(wrapped, batch(rank, 1, 4, 6)).backward())


def _wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LATE_S
    while not holds():
        assert time.monotonic() < end, "the other survivor did nothing"
        time.sleep(0.01)


def killed_with_windows_between_hosts() -> Report:
    """Rank 1 dies with a mutex of rank 0's. Its edges fail, and what ranks 0 and 2 have between them goes on."""
    bf.init(bf.FullyConnectedGraph)
    rank, tensor = bf.rank(), torch.ones(100_000)
    for name in ("w", "last"):
        bf.win_create(tensor, name, zero_init=True)
    if rank == 1:
        with bf.win_mutex("w", ranks=[0]):
            bf.barrier()
            _die()
    bf.barrier()
    report = _until_error(lambda: cast(Any, bf.win_put(tensor, "w")))
    other = 2 - rank
    for name in ("w", "w", "last"):
        bf.win_put(tensor, name, dst_weights={other: 1.0}, require_mutex=True)
    _wait_until(lambda: bf.get_win_version("last") == {1: 0, other: 1})
    with bf.win_lock("w"):  # that of the dead, too
        return report


def killed_in_a_barrier_under_a_mutex() -> Report:
    """Rank 1 dies in a barrier that it has called with a mutex of rank 0's held; rank 2 never calls it."""
    bf.init(bf.FullyConnectedGraph)
    rank, tensor = bf.rank(), torch.ones(1000)
    bf.win_create(tensor, "w", zero_init=True)
    bf.barrier()
    if rank == 1:
        with bf.win_mutex("w", ranks=[0]):
            bf.win_put(tensor, "w", dst_weights={0: 1.0, 2: 1.0})
            threading.Timer(0.3, _die).start()
            bf.barrier()
    _wait_until(lambda: bf.get_win_version("w")[1] == 1)
    if rank == 0:
        report = _until_error(bf.barrier)
        bf.win_update("w", require_mutex=True)  # that of the dead, too
        return report
    return _until_error(lambda: cast(Any, bf.win_put(tensor, "w", dst_weights={1: 1.0}, require_mutex=True)))


def stands_still_for_5_s() -> Report:
    """Rank 1 stops in the middle of neighbors' averages: nobody is lost, and all go on when it does."""
    bf.init(bf.FullyConnectedGraph)
    rank, size = bf.rank(), bf.size()
    tensor = torch.full((1000,), float(rank))
    bf.win_create(tensor, "w", zero_init=True)
    pid = int(bf.broadcast(torch.tensor([float(os.getpid())], dtype=torch.float64), 1).item())
    waited = 0.0
    for step in range(20):
        if step == 10 and rank == 0:
            os.kill(pid, signal.SIGSTOP)
            bf.win_put(torch.full((1000,), 8.0), "w", require_mutex=True)
            threading.Timer(STILL_S, os.kill, (pid, signal.SIGCONT)).start()
        begin = time.monotonic()
        mean = bf.neighbor_allreduce(tensor)
        waited = max(waited, time.monotonic() - begin)
        assert torch.equal(mean, torch.full((1000,), (size - 1) / 2)), mean
    bf.barrier()
    bf.win_update_then_collect("w")
    assert torch.equal(tensor, torch.full((1000,), 0.0 if rank == 0 else rank + 8.0)), tensor
    return {"seconds": waited}


def averages_until_killed() -> Report:
    """Everybody averages with neighbors, by operations and by windows, and says so after some rounds."""
    bf.init(bf.RingGraph)
    weights = torch.ones(1 << 16)
    bf.win_create(weights, "weights", zero_init=True)
    end = time.monotonic() + LATE_S
    for step in itertools.count():
        bf.neighbor_allreduce(weights)
        handle = bf.win_put_nonblocking(weights, "weights", require_mutex=True)
        bf.win_update("weights")
        bf.win_wait(handle)
        if step == 3:
            print("training", flush=True)
        if time.monotonic() > end:
            return {}
    raise AssertionError("unreachable")


def main() -> None:
    """Runs the scenario on this rank."""
    name, folder = sys.argv[1:3]
    rank = bagua.get_rank()
    if name.endswith("between_hosts"):
        os.environ["PELTON_HOST_LABEL"] = f"host-{rank}"
    bagua.init_process_group(timeout=LATE_S if name == "stands_still_for_5_s" else TIMEOUT_S)
    report = globals()[name]()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
