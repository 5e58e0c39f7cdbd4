"""What somebody has written for gloo; it knows nothing of Pelton. Every rank prints as JSON what it saw."""

from __future__ import annotations

import datetime
import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist


def _train() -> list[float]:
    torch.manual_seed(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(3, 4) + dist.get_rank()).square().mean().backward()
        optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


def _backend(group: Any, device: str = "cpu") -> str:
    return type(group._get_backend(torch.device(device))).__module__


def main() -> None:
    """The argument is the backend's name."""
    name = sys.argv[1]
    dist.init_process_group(name, timeout=datetime.timedelta(seconds=60))
    pair: Any = dist.new_group(backend="gloo")
    group: Any = dist.group.WORLD
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, os.environ["RANK"], group=pair)
    dist.monitored_barrier(pair)
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=50), pair)
    seen = {
        "name": dist.get_backend(),
        "backends": [_backend(group), _backend(pair)],
        "timeout_s": pair._get_backend(torch.device("cpu")).options._timeout.total_seconds(),
        "everyones": everyones,
        "weights": _train(),
    }
    if "pelton_autoload.gloos_seat" in sys.modules:
        seen["of_cuda"] = _with_a_gpu(group)
    dist.destroy_process_group()
    print(json.dumps(seen))


def _with_a_gpu(group: Any) -> list[str]:
    """What the default group would have for either device on a machine with GPUs."""
    seat: Any = sys.modules["pelton_autoload.gloos_seat"]
    request = seat._Request({"backend": "gloo", "timeout": datetime.timedelta(seconds=60)})
    seat._leave_devices_to_gloo(group, dist.distributed_c10d._get_default_store(), request)
    return [_backend(group, device) for device in ("cpu", "cuda")]


if __name__ == "__main__":
    main()
